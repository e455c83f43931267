"""text-embeddings-inference: /embed, /predict, /similarity, /info, /rerank, /tokenize and /decode.

/rerank orders texts by how well they answer a query. It needs a model that reads query and text together. Embeddings do
not replace it, as there: /similarity compares them. /metrics is that of status.py.
"""

from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag
from starlette.responses import Response

from clozeline.inference import fields
from clozeline.inference.fields import StrictModel
from clozeline.inference.package import kind_of
from clozeline.inference.tokenization import Given, Piece
from clozeline.records.package import Manifest
from clozeline.serving.errors import ErrorDetail, refused
from clozeline.serving.http import bodies, house_labels, house_texts, operation
from clozeline.serving.loading import LoadedModel
from clozeline.serving.models import ANY

RERANKING = replace(
    house_labels.CLASSIFYING_PAIRS,
    has=lambda model: model.relevant_label is not None,
    missing="scores the relevance of a text",
    expected="a classifier of pairs, with one score or a label such as `relevant`",
)
_MAX_IDS = 65_536
# UTF-8 bytes of the texts of one request to /tokenize. A token takes some 90 bytes of the answer, and most have
# several bytes.
_MAX_BYTES = 350_000
_Ids = Annotated[list[Annotated[int, Field(ge=0), fields.WHOLE]], Field(min_length=1, max_length=_MAX_IDS)]
_TYPES = {429: "Overloaded", 503: "Unhealthy"}
_OneOrTwo = Annotated[list[fields.Text], Field(min_length=1, max_length=2)]


class RerankRequest(StrictModel):
    query: fields.Text
    texts: bodies.Texts
    raw_scores: bool = Field(default=False, description="Return logits instead of probabilities.")
    return_text: bool = Field(default=False, description="Return the texts with their scores.")
    truncate: fields.Truncate = False
    truncation_direction: bodies.TruncationDirection = "right"


class Rank(BaseModel):
    index: int = Field(ge=0, description="Index of the text in the request.")
    score: float = Field(description="Probability that the text answers the query; the logit if `raw_scores` is set.")
    text: str | None = None


async def rerank(call: operation.Call, body: RerankRequest) -> Response:
    """Order texts by how well they answer a query.

    Returns:
        Index and score of each text, best first.
    """
    served = call.served(RERANKING)
    pairs = [(body.query, text) for text in body.texts]
    function = "none" if body.raw_scores else served.model.relevance_function
    reply = await house_labels.labelled(call, served, pairs, truncate=body.truncate, function=function)
    label = served.model.relevant_label
    scores = [next(one.score for one in scores if one.label == label) for scores in reply.answers]
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    ranks = [
        {"index": place, "score": scores[place], **({"text": body.texts[place]} if body.return_text else {})}
        for place in order
    ]
    return operation.JsonResponse(ranks, headers=reply.headers)


RERANK = operation.Operation(
    path="/rerank", answer=rerank, result=list[Rank], ability=RERANKING, place="texts[{}]".format
)


class TokenizeRequest(StrictModel):
    inputs: bodies.Inputs
    add_special_tokens: bool = True
    prompt_name: bodies.NoPromptName = None
    model: fields.ModelName = None


class DecodeRequest(StrictModel):
    ids: Annotated[
        Annotated[_Ids, Tag(bodies.FLAT_TAG)]
        | Annotated[Annotated[list[_Ids], Field(min_length=1, max_length=bodies.MAX_TEXTS)], Tag(bodies.NESTED_TAG)],
        Field(description="Token ids of one text, or a list of such lists."),
        Discriminator(
            bodies.nesting,
            custom_error_type="ids_type",
            custom_error_message="token ids of one text, or a list of such lists",
        ),
    ]
    skip_special_tokens: bool = True
    model: fields.ModelName = None


async def tokenize(call: operation.Call, body: TokenizeRequest) -> Response:
    """Split texts into tokens.

    Returns:
        A list of tokens for each text, even for a single text.
    """
    served = call.served(ANY, body.model)
    texts = bodies.texts_of(body.inputs)
    num_bytes = sum(len(text.encode()) for text in texts)
    if num_bytes > _MAX_BYTES:
        expected = f"at most {_MAX_BYTES:,} together"
        raise refused("answer_too_large", given=f"{num_bytes:,} bytes of text", expected=expected, param="inputs")
    split = partial(served.model.tokenizer.pieces, texts, add_special_tokens=body.add_special_tokens)
    pieces = await call.service.asking.tokenizing(call.request, split, num_bytes)
    return operation.JsonResponse(pieces, headers=served.identity.headers)


async def decode(call: operation.Call, body: DecodeRequest) -> Response:
    """Join token ids into texts.

    Returns:
        The text of each list of ids.
    """
    served = call.served(ANY, body.model)
    lists = [ids for ids in body.ids if isinstance(ids, list)] or [[one for one in body.ids if isinstance(one, int)]]
    _check_known(lists, served.model.manifest)
    decoded = partial(served.model.tokenizer.decode, skip_special_tokens=body.skip_special_tokens)
    num_ids = sum(map(len, lists))
    texts = await call.service.asking.tokenizing(call.request, lambda: list(map(decoded, lists)), num_ids)
    return operation.JsonResponse(texts, headers=served.identity.headers)


def _check_known(lists: list[list[int]], manifest: Manifest) -> None:
    largest = max(map(max, lists))
    if largest >= manifest.vocab_size:
        raise refused("unknown_token", given=largest, expected=f"ids from 0 to {manifest.vocab_size - 1}", param="ids")


TOKEN_OPERATIONS = (
    operation.Operation(path="/tokenize", answer=tokenize, ability=ANY, tells="model", result=list[list[Piece]]),
    operation.Operation(path="/decode", answer=decode, ability=ANY, tells="model", result=list[str]),
)


class HuggingFaceError(operation.ErrorBody):
    """Error of Hugging Face's pipelines and of text-embeddings-inference."""

    error: str
    error_type: str


def _said(status: int, detail: ErrorDetail) -> HuggingFaceError:
    kind = _TYPES.get(status, "Backend" if status >= 500 else "Validation")
    return HuggingFaceError(error=operation.sentence(detail), error_type=kind)


HUGGING_FACE_WORDS = operation.Words(HuggingFaceError, _said)


def _predicted_kind(inputs: object) -> str | None:
    """Return the tag of the inputs; None for a list of three or more texts, because a list of two is a pair."""
    if isinstance(inputs, str):
        return bodies.TEXT_TAG
    kind = bodies.nesting(inputs)
    return None if kind == bodies.FLAT_TAG and isinstance(inputs, list) and len(inputs) not in (1, 2) else kind


class PredictRequest(StrictModel):
    inputs: Annotated[
        Annotated[fields.Text, Tag(bodies.TEXT_TAG)]
        | Annotated[_OneOrTwo, Tag(bodies.FLAT_TAG)]
        | Annotated[
            Annotated[list[_OneOrTwo], Field(min_length=1, max_length=bodies.MAX_TEXTS)], Tag(bodies.NESTED_TAG)
        ],
        Field(
            description='A text ("a" or ["a"]), a pair of texts (["a", "b"]), or a list of 1 to '
            f'{bodies.MAX_TEXTS} such lists ([["a"], ["b"]]). Pairs are for models that were trained on pairs.'
        ),
        Discriminator(
            _predicted_kind,
            custom_error_type="inputs_type",
            custom_error_message='a text ("a"), a list of texts, each in its own list ([["a"], ["b"], ["c"]]), or a '
            'list of pairs ([["a", "b"]])',
        ),
    ]
    raw_scores: bool = Field(default=False, description="Return logits instead of probabilities.")
    truncate: fields.Truncate = False
    truncation_direction: bodies.TruncationDirection = "right"


class RawScore(BaseModel):
    label: str
    score: float = Field(
        description="Probability among all labels, or of this label alone if a text can have several; the logit if "
        "`raw_scores` is set."
    )


class SimilarityInputs(StrictModel):
    source_sentence: fields.Text
    sentences: bodies.Texts


class SimilarityParameters(StrictModel):
    truncate: fields.Truncate = False
    truncation_direction: bodies.TruncationDirection = "right"
    prompt_name: bodies.PromptName = None


class SimilarityRequest(StrictModel):
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


async def predict(call: operation.Call, body: PredictRequest) -> Response:
    """Classify texts; the labels of a text are a flat list.

    Returns:
        All labels of the text, best first; a list for each of several texts.
    """
    given, is_one = _given(body.inputs)
    served = house_labels.classifier_of(call, given)
    function: Literal["none"] | None = "none" if body.raw_scores else None
    reply = await house_labels.labelled(call, served, given, truncate=body.truncate, function=function)
    return operation.JsonResponse(reply.answers[0] if is_one else reply.answers, headers=reply.headers)


async def similarity(call: operation.Call, body: SimilarityRequest) -> Response:
    """Compare one sentence with others.

    Returns:
        The cosine with each sentence, in the order of the request.
    """
    served = call.served(house_texts.EMBEDDING)
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    asked = body.parameters or SimilarityParameters()
    reply = await house_texts.embedded(call, served, texts, truncate=asked.truncate, prompt_name=asked.prompt_name)
    return operation.JsonResponse(house_texts.similarities(reply.answers), headers=reply.headers)


async def info(call: operation.Call) -> Response:
    """The default model."""
    served = call.served(ANY)
    manifest = served.model.manifest
    answer = Info(
        model_id=served.identity.name,
        model_sha=served.identity.sha256,
        model_dtype=served.identity.precision,
        model_type=_model_type(served),
        max_input_length=manifest.max_length,
        max_batch_tokens=call.service.batch_tokens,
        max_client_batch_size=bodies.MAX_TEXTS,
        auto_truncate=False,
        tokenization_workers=1,
        version=version("clozeline"),
    )
    return operation.JsonResponse(answer.model_dump())


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


EMBED = operation.Operation(
    path="/embed", answer=house_texts.embed, result=house_texts.EmbedResponse, ability=house_texts.EMBEDDING
)
SIMILARITY = operation.Operation(
    path="/similarity",
    answer=similarity,
    result=list[float],
    ability=house_texts.EMBEDDING,
    place=lambda number: f"inputs.sentences[{number - 1}]" if number else "inputs.source_sentence",
)
EMBEDDINGS_INFERENCE = operation.Dialect(
    HUGGING_FACE_WORDS,
    (
        EMBED,
        operation.Operation(
            path="/predict",
            answer=predict,
            result=list[RawScore] | list[list[RawScore]],
            ability=house_labels.CLASSIFYING,
        ),
        SIMILARITY,
        operation.Operation(path="/info", answer=info, result=Info),
        RERANK,
        *TOKEN_OPERATIONS,
    ),
    tag="text-embeddings-inference",
)
