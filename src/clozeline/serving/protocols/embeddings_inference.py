"""Routes of text-embeddings-inference; its /embed and /metrics are those of the house.

There is no /rerank: it asks a model that reads two texts at once, and none such can be exported.
"""

from importlib.metadata import version
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Request, Response
from fastapi.openapi.models import Example
from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from clozeline.inference.classifier import Classifier
from clozeline.serving import schemas
from clozeline.serving.bodies import JsonRoute
from clozeline.serving.dialects import HUGGING_FACE
from clozeline.serving.limits import MAX_TEXTS
from clozeline.serving.loading import LoadedModel
from clozeline.serving.openapi import answered, not_ready
from clozeline.serving.responses import JsonResponse
from clozeline.serving.service import service_of
from clozeline.serving.vectors import similarities

router = APIRouter(route_class=JsonRoute, tags=["text-embeddings-inference"])


def _no_pairs(given: Any) -> Any:
    """`["a", "b"]` is a pair of texts to these clients, and `[["a"], ["b"]]` is two texts."""
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str):
        return given[0]
    nested = isinstance(given, list) and all(isinstance(texts, list) for texts in given)
    if (isinstance(given, list) and not nested) or (nested and any(len(texts) != 1 for texts in given)):
        raise PydanticCustomError("pairs", "a text, or a list of lists of one text each; these models read no pairs")
    return given


_OneText = Annotated[list[schemas.Text], Field(min_length=1, max_length=1)]


class PredictRequest(schemas.RequestBody):
    inputs: Annotated[
        schemas.Text | _OneText | Annotated[list[_OneText], Field(min_length=1, max_length=MAX_TEXTS)],
        BeforeValidator(_no_pairs),
        Field(description=f'A text, also as ["a"]; or a list of 1 to {MAX_TEXTS} lists of one: [["a"], ["b"]].'),
    ]
    raw_scores: Annotated[bool, Field(description="The logits, instead of probabilities.")] = False
    truncate: schemas.Truncate = False
    truncation_direction: schemas.TruncationDirection = "right"


class RawScore(BaseModel):
    label: str
    score: float = Field(description="Probability among all labels, or the logit if `raw_scores` was set.")


class SimilarityInputs(schemas.RequestBody):
    source_sentence: schemas.Text
    sentences: schemas.Texts


class SimilarityParameters(schemas.RequestBody):
    truncate: schemas.Truncate = False
    truncation_direction: schemas.TruncationDirection = "right"
    prompt_name: schemas.PromptName = None


class SimilarityRequest(schemas.RequestBody):
    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None


class Info(BaseModel):
    """Of the model that answers who names none."""

    model_id: str
    model_sha: str = Field(description="SHA-256 of the graph that answers.")
    model_dtype: str
    model_type: dict[str, dict[str, Any]]
    max_input_length: int
    max_batch_tokens: int
    max_client_batch_size: int
    auto_truncate: Literal[False]
    tokenization_workers: int
    version: str


PREDICT_EXAMPLES: dict[str, Example] = {
    "one text": {"summary": "One text", "value": {"inputs": "Parse a date."}},
    "several": {"summary": "Several texts", "value": {"inputs": [["Parse a date."], ["Open a file."]]}},
}
SIMILARITY_EXAMPLES: dict[str, Example] = {
    "two": {
        "summary": "One sentence beside two others",
        "value": {
            "inputs": {"source_sentence": "Sort a list.", "sentences": ["Order a list.", "Open a file."]},
        },
    }
}


@router.post(
    "/predict",
    summary="Label texts, each text's labels in a flat list",
    response_model=list[RawScore] | list[list[RawScore]],
    responses=answered("All labels of a text, best first; of several texts, a list for each", HUGGING_FACE),
)
async def predict(
    request: Request,
    body: Annotated[PredictRequest, Body(openapi_examples=PREDICT_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    service = service_of(request)
    served = service.catalogue.classifier(None)
    listed = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    texts = [one if isinstance(one, str) else one[0] for one in listed]
    reply = await service.asking.ask(
        request,
        served,
        texts,
        lambda: served.model.classifying(
            texts,
            top_k=len(served.model.manifest.labels),
            truncate=body.truncate,
            function="none" if body.raw_scores else "softmax",
        ),
        timeout_milliseconds,
    )
    if not body.raw_scores:
        service.metrics.confident(served.identity.name, (scores[0].score for scores in reply.answers))
    return JsonResponse(reply.answers[0] if isinstance(body.inputs, str) else reply.answers, headers=reply.headers)


@router.post(
    "/similarity",
    summary="How near one sentence is to others",
    response_model=list[float],
    responses=answered("The cosine with each of the sentences, in their order", HUGGING_FACE),
)
async def similarity(
    request: Request,
    body: Annotated[SimilarityRequest, Body(openapi_examples=SIMILARITY_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    service = service_of(request)
    served = service.catalogue.embedder(None)
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    truncate = body.parameters is not None and body.parameters.truncate
    reply = await service.asking.ask(
        request, served, texts, lambda: served.model.embedding(texts, truncate=truncate), timeout_milliseconds
    )
    return JsonResponse(similarities(reply.answers), headers=reply.headers)


@router.get(
    "/info", summary="The model that answers who names none", response_model=Info, responses=not_ready(HUGGING_FACE)
)
async def info(request: Request) -> Response:
    service = service_of(request)
    served = service.catalogue.first()
    manifest = served.model.manifest
    told = Info(
        model_id=served.identity.name,
        model_sha=served.identity.sha256,
        model_dtype=served.identity.precision,
        model_type=_model_type(served),
        max_input_length=manifest.max_length,
        max_batch_tokens=service.batch_tokens,
        max_client_batch_size=MAX_TEXTS,
        auto_truncate=False,
        tokenization_workers=1,
        version=version("clozeline"),
    )
    return JsonResponse(told.model_dump())


def _model_type(served: LoadedModel) -> dict[str, dict[str, Any]]:
    if not isinstance(served.model, Classifier):
        return {"embedding": {"pooling": "mean"}}
    labels = served.model.manifest.labels
    names = {str(number): label for number, label in enumerate(labels)}
    return {"classifier": {"id2label": names, "label2id": {label: number for number, label in enumerate(labels)}}}
