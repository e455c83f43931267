"""Routes of text-embeddings-inference; /embed is in routes.py, /rerank in rerank.py, /metrics is that of the house."""

from importlib.metadata import version
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Request, Response
from fastapi.openapi.models import Example
from pydantic import BaseModel, Discriminator, Field, Tag

from clozeline.inference.classifier import Classifier
from clozeline.inference.embedder import Embedder
from clozeline.inference.manifest import Task
from clozeline.inference.tokenization import Given, each_text
from clozeline.serving import schemas
from clozeline.serving.bodies import JsonRoute
from clozeline.serving.limits import MAX_TEXTS
from clozeline.serving.models.loading import LoadedModel
from clozeline.serving.models.service import service_of
from clozeline.serving.openapi import answered, not_ready
from clozeline.serving.protocols.dialects import HUGGING_FACE
from clozeline.serving.protocols.model_prefix import wanted_model
from clozeline.serving.responses import JsonResponse
from clozeline.serving.vectors import similarities

router = APIRouter(route_class=JsonRoute, tags=["text-embeddings-inference"])


_OneOrTwo = Annotated[list[schemas.Text], Field(min_length=1, max_length=2)]


def _predicted_kind(inputs: object) -> str | None:
    """Of a list of three texts and more, none: as a pair is a list of two, it would not be clear what is meant."""
    if isinstance(inputs, str):
        return schemas.TEXT_TAG
    kind = schemas.nesting(inputs)
    return None if kind == schemas.FLAT_TAG and isinstance(inputs, list) and len(inputs) not in (1, 2) else kind


class PredictRequest(schemas.RequestBody):
    inputs: Annotated[
        Annotated[schemas.Text, Tag(schemas.TEXT_TAG)]
        | Annotated[_OneOrTwo, Tag(schemas.FLAT_TAG)]
        | Annotated[Annotated[list[_OneOrTwo], Field(min_length=1, max_length=MAX_TEXTS)], Tag(schemas.NESTED_TAG)],
        Field(
            description=f'A text, also as ["a"], or a pair of texts: ["a", "b"]; or a list of 1 to {MAX_TEXTS} of such '
            'lists: [["a"], ["b"]]. Pairs are for models that were trained on pairs.'
        ),
        Discriminator(
            _predicted_kind,
            custom_error_type="inputs_type",
            custom_error_message='a text, "a"; or a list of texts, each in a list of its own, [["a"], ["b"], ["c"]]; '
            'or of pairs, [["a", "b"]]',
        ),
    ]
    raw_scores: Annotated[bool, Field(description="The logits, instead of probabilities.")] = False
    truncate: schemas.Truncate = False
    truncation_direction: schemas.TruncationDirection = "right"


class RawScore(BaseModel):
    label: str
    score: float = Field(
        description="Probability among all labels, or of a model of several labels a text, of this one; the logit if "
        "`raw_scores` was set."
    )


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


_KINDS: dict[Task, str] = {
    "text-classification": "classifier",
    "token-classification": "token_classifier",
    "question-answering": "question_answerer",
}
"""The last two are ours: text-embeddings-inference has no such models."""
PREDICT_EXAMPLES: dict[str, Example] = {
    "one text": {"summary": "One text", "value": {"inputs": "Parse a date."}},
    "several": {"summary": "Several texts", "value": {"inputs": [["Parse a date."], ["Open a file."]]}},
    "pair": {
        "summary": "A pair of texts, of a model that reads pairs",
        "value": {"inputs": [["How do I sort a list?", "Sort a list in place."]]},
    },
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
    given, is_one = _given(body.inputs)
    pairs = any(isinstance(one, tuple) for one in given)
    catalogue, model = service.catalogue, wanted_model(request)
    served = catalogue.pair_classifier("/predict", model) if pairs else catalogue.classifier(model)
    reply = await service.asking.ask(
        request,
        served,
        each_text(given),
        lambda: served.model.classifying(
            given,
            top_k=len(served.model.manifest.labels),
            truncate=body.truncate,
            function="none" if body.raw_scores else None,
        ),
        timeout_milliseconds,
    )
    if not body.raw_scores:
        service.metrics.confident(served.identity.name, (scores[0].score for scores in reply.answers))
    return JsonResponse(reply.answers[0] if is_one else reply.answers, headers=reply.headers)


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
    served = service.catalogue.embedder(wanted_model(request))
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
    served = service.catalogue.first(wanted_model(request))
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


def _given(inputs: str | list[str] | list[list[str]]) -> tuple[list[Given], bool]:
    """What is asked, text or pair, and whether it is one alone: two texts in one list are a pair to these clients."""
    if isinstance(inputs, str):
        return [inputs], True
    alone = [one for one in inputs if isinstance(one, str)]
    listed = [alone] if alone else [one for one in inputs if isinstance(one, list)]
    return [(one[0], one[1]) if len(one) == 2 else one[0] for one in listed], bool(alone)


def _model_type(served: LoadedModel) -> dict[str, dict[str, Any]]:
    if isinstance(served.model, Embedder):
        return {"embedding": {"pooling": "mean"}}
    labels = served.model.manifest.labels
    names = {str(number): label for number, label in enumerate(labels)}
    is_reranker = isinstance(served.model, Classifier) and served.model.manifest.reads_pairs and len(labels) == 1
    kind = "reranker" if is_reranker else _KINDS[served.model.manifest.task]
    return {kind: {"id2label": names, "label2id": {label: number for number, label in enumerate(labels)}}}
