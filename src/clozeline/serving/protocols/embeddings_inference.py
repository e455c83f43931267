"""text-embeddings-inference: /embed, /predict, /similarity and /info; rerank.py and tokens.py hold the rest.

/metrics is that of house/status.py.
"""

from importlib.metadata import version
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag
from starlette.responses import Response

from clozeline.inference.model_kinds import kind_of
from clozeline.inference.tokenization import Given
from clozeline.serving.errors import ErrorDetail
from clozeline.serving.models.catalogue import ANY
from clozeline.serving.protocols.dialects import Dialect, ErrorBody, Words, sentence
from clozeline.serving.protocols.fields import (
    FLAT_TAG,
    MAX_TEXTS,
    NESTED_TAG,
    TEXT_TAG,
    PromptName,
    RequestBody,
    Text,
    Texts,
    Truncate,
    TruncationDirection,
    nesting,
)
from clozeline.serving.protocols.house.classify import CLASSIFYING, CLASSIFYING_PAIRS, classifier_of, labelled
from clozeline.serving.protocols.house.embed import (
    EMBED_EXAMPLES,
    EMBEDDING,
    EmbedRequest,
    EmbedResponse,
    embed,
    embedded,
    similarities,
)
from clozeline.serving.protocols.operation import Call, Example, JsonResponse, Operation
from clozeline.serving.protocols.rerank import RERANK
from clozeline.serving.protocols.tokens import TOKEN_OPERATIONS
from clozeline.serving.scheduling.work import LoadedModel

_TYPES = {429: "Overloaded", 503: "Unhealthy"}


class HuggingFaceError(ErrorBody):
    """Error of Hugging Face's pipelines and of text-embeddings-inference."""

    error: str
    error_type: str


def _said(status: int, detail: ErrorDetail) -> HuggingFaceError:
    kind = _TYPES.get(status, "Backend" if status >= 500 else "Validation")
    return HuggingFaceError(error=sentence(detail), error_type=kind)


HUGGING_FACE_WORDS = Words(HuggingFaceError, _said)

_OneOrTwo = Annotated[list[Text], Field(min_length=1, max_length=2)]


def _predicted_kind(inputs: object) -> str | None:
    """Return the tag of the inputs; None for a list of three or more texts, because a list of two is a pair."""
    if isinstance(inputs, str):
        return TEXT_TAG
    kind = nesting(inputs)
    return None if kind == FLAT_TAG and isinstance(inputs, list) and len(inputs) not in (1, 2) else kind


class PredictRequest(RequestBody):
    inputs: Annotated[
        Annotated[Text, Tag(TEXT_TAG)]
        | Annotated[_OneOrTwo, Tag(FLAT_TAG)]
        | Annotated[Annotated[list[_OneOrTwo], Field(min_length=1, max_length=MAX_TEXTS)], Tag(NESTED_TAG)],
        Field(
            description=f'A text ("a" or ["a"]), a pair of texts (["a", "b"]), or a list of 1 to {MAX_TEXTS} such '
            'lists ([["a"], ["b"]]). Pairs are for models that were trained on pairs.'
        ),
        Discriminator(
            _predicted_kind,
            custom_error_type="inputs_type",
            custom_error_message='a text ("a"), a list of texts, each in its own list ([["a"], ["b"], ["c"]]), or a '
            'list of pairs ([["a", "b"]])',
        ),
    ]
    raw_scores: Annotated[bool, Field(description="Return logits instead of probabilities.")] = False
    truncate: Truncate = False
    truncation_direction: TruncationDirection = "right"


class RawScore(BaseModel):
    label: str
    score: float = Field(
        description="Probability among all labels, or of this label alone if a text can have several; the logit if "
        "`raw_scores` is set."
    )


class SimilarityInputs(RequestBody):
    source_sentence: Text
    sentences: Texts


class SimilarityParameters(RequestBody):
    truncate: Truncate = False
    truncation_direction: TruncationDirection = "right"
    prompt_name: PromptName = None


class SimilarityRequest(RequestBody):
    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None


class Info(BaseModel):
    """The model that answers requests without a model name."""

    model_id: str
    model_sha: str = Field(description="SHA-256 of the served graph.")
    model_dtype: str
    model_type: dict[str, dict[str, Any]]
    max_input_length: int
    max_batch_tokens: int
    max_client_batch_size: int
    auto_truncate: Literal[False]
    tokenization_workers: int
    version: str


PREDICT_EXAMPLES = {
    "one text": Example("One text", {"inputs": "Parse a date."}),
    "several": Example("Several texts", {"inputs": [["Parse a date."], ["Open a file."]]}),
    "pair": Example(
        "A pair of texts, for a model that reads pairs",
        {"inputs": [["How do I sort a list?", "Sort a list in place."]]},
        ability=CLASSIFYING_PAIRS,
    ),
}
_COMPARED = {"source_sentence": "Sort a list.", "sentences": ["Order a list.", "Open a file."]}


async def predict(call: Call, body: PredictRequest) -> Response:
    given, is_one = _given(body.inputs)
    served = classifier_of(call, given)
    function: Literal["none"] | None = "none" if body.raw_scores else None
    reply = await labelled(call, served, given, truncate=body.truncate, function=function)
    return JsonResponse(reply.answers[0] if is_one else reply.answers, headers=reply.headers)


async def similarity(call: Call, body: SimilarityRequest) -> Response:
    served = call.served(EMBEDDING)
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    asked = body.parameters or SimilarityParameters()
    reply = await embedded(call, served, texts, truncate=asked.truncate, prompt_name=asked.prompt_name)
    return JsonResponse(similarities(reply.answers), headers=reply.headers)


async def info(call: Call) -> Response:
    served = call.served(ANY)
    manifest = served.model.manifest
    answer = Info(
        model_id=served.identity.name,
        model_sha=served.identity.sha256,
        model_dtype=served.identity.precision,
        model_type=_model_type(served),
        max_input_length=manifest.max_length,
        max_batch_tokens=call.service.batch_tokens,
        max_client_batch_size=MAX_TEXTS,
        auto_truncate=False,
        tokenization_workers=1,
        version=version("clozeline"),
    )
    return JsonResponse(answer.model_dump())


def _given(inputs: str | list[str] | list[list[str]]) -> tuple[list[Given], bool]:
    """Return the texts or pairs, and whether there is a single one. For these clients a list of two texts is a pair."""
    if isinstance(inputs, str):
        return [inputs], True
    alone = [one for one in inputs if isinstance(one, str)]
    listed = [alone] if alone else [one for one in inputs if isinstance(one, list)]
    return [(one[0], one[1]) if len(one) == 2 else one[0] for one in listed], bool(alone)


def _model_type(served: LoadedModel) -> dict[str, dict[str, Any]]:
    manifest = served.model.manifest
    kind, labels = kind_of(manifest.task).model_type, manifest.labels
    if kind == "embedding":
        return {kind: {"pooling": manifest.pooling}}
    names = {str(number): label for number, label in enumerate(labels)}
    ids = {label: number for number, label in enumerate(labels)}
    is_reranker = manifest.reads_pairs and len(labels) == 1
    return {"reranker" if is_reranker else kind: {"id2label": names, "label2id": ids}}


def _compared_place(number: int) -> str:
    return f"inputs.sentences[{number - 1}]" if number else "inputs.source_sentence"


EMBED = Operation(
    path="/embed",
    answer=embed,
    summary="Embed texts as vectors of length 1",
    result_description="One vector for each text",
    result=EmbedResponse,
    ability=EMBEDDING,
    body=EmbedRequest,
    examples=EMBED_EXAMPLES,
)
SIMILARITY = Operation(
    path="/similarity",
    answer=similarity,
    summary="Compare one sentence with others",
    result_description="The cosine with each sentence, in the order of the request",
    result=list[float],
    ability=EMBEDDING,
    body=SimilarityRequest,
    examples={"two": Example("One sentence and two others", {"inputs": _COMPARED})},
    place=_compared_place,
)
EMBEDDINGS_INFERENCE = Dialect(
    HUGGING_FACE_WORDS,
    (
        EMBED,
        Operation(
            path="/predict",
            answer=predict,
            summary="Classify texts; the labels of a text are a flat list",
            result_description="All labels of the text, best first; a list for each of several texts",
            result=list[RawScore] | list[list[RawScore]],
            ability=CLASSIFYING,
            body=PredictRequest,
            examples=PREDICT_EXAMPLES,
        ),
        SIMILARITY,
        Operation(path="/info", answer=info, summary="The default model", result=Info),
        RERANK,
        *TOKEN_OPERATIONS,
    ),
    tag="text-embeddings-inference",
)
