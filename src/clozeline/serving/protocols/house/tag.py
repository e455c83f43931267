"""/tag: the entities of a text, under the names of Hugging Face's token-classification."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from clozeline.inference.entities import OUTSIDE, Aggregation
from clozeline.inference.entities import Tagged as Found
from clozeline.inference.tagger import Tagger
from clozeline.serving.protocols.fields import (
    MAX_TOP_K,
    Inputs,
    ModelName,
    RequestBody,
    TokenOverlap,
    texts_of,
)
from clozeline.serving.protocols.operation import Call, Example, JsonResponse, Operation
from clozeline.serving.scheduling.work import ServedModel


class TagReading(RequestBody):
    aggregation_strategy: Annotated[
        Aggregation,
        Field(
            description="none: every token; simple: neighbours of one type together; first, average, max: whole words, "
            "by the tag of their first token, of the mean of their tokens, or of the surest."
        ),
    ] = "simple"
    stride: Annotated[
        TokenOverlap | None,
        Field(description="Tokens that two windows of a long text have in common, at most half; null: a quarter."),
    ] = None


class TagParameters(TagReading):
    ignore_labels: list[str] = Field(
        default_factory=lambda: [OUTSIDE], max_length=MAX_TOP_K, description="Types that are left out."
    )


class TagRequest(RequestBody):
    inputs: Inputs
    parameters: TagParameters | None = None
    model: ModelName = None


class _Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    score: float = Field(ge=0, le=1.001, description="Mean probability of the tag over its tokens, or words.")
    word: str
    start: int = Field(ge=0, description="In the text, in characters.")
    end: int = Field(ge=0)


class Entity(_Place):
    entity_group: str


class TaggedToken(_Place):
    entity: str
    index: int = Field(ge=0, description="Of the token in the text as it is read, special tokens among them.")


_Tagged = list[Entity] | list[TaggedToken]
TagResponse = _Tagged | list[_Tagged]
"""Mirrors the request: of one text its entities, of several a list for each."""

TAG_EXAMPLES = {
    "one text": Example("The entities of a text", {"inputs": "Maria Lopez lives in Oslo."}),
    "several": Example(
        "Several texts, whole words",
        {
            "inputs": ["Maria Lopez lives in Oslo.", "Acme opens in Rome."],
            "parameters": {"aggregation_strategy": "first"},
        },
    ),
    "tokens": Example(
        "Every token with its tag",
        {"inputs": "Oslo.", "parameters": {"aggregation_strategy": "none", "ignore_labels": []}},
    ),
}


async def tag(call: Call, body: TagRequest) -> Response:
    """A text longer than the model reads is read in windows that overlap; nothing is cut."""
    served = call.models.tagger(call.wanted(body.model))
    wanted = body.parameters or TagParameters()
    found, headers = await tagged(call, served, texts_of(body.inputs), wanted, wanted.ignore_labels)
    return JsonResponse(found[0] if isinstance(body.inputs, str) else found, headers=headers)


Tagged = tuple[list[Found], dict[str, str]]
"""The entities of each text, and the headers that tell who found them."""


async def tagged(
    call: Call,
    served: ServedModel[Tagger],
    texts: list[str],
    wanted: TagReading | None = None,
    ignored: Sequence[str] = (OUTSIDE,),
) -> Tagged:
    """Raises as `Call.ask`."""
    wanted = wanted or TagReading()
    reply = await call.ask(served, texts, lambda: served.model.tagging(texts, overlap=wanted.stride))
    found = await call.finished(
        reply,
        lambda: served.model.entities(texts, reply.answers, strategy=wanted.aggregation_strategy, ignored=ignored),
        texts,
    )
    call.service.metrics.confident(served.identity.name, (entity.score for of_text in found for entity in of_text))
    return found, reply.headers


TAG = Operation(
    path="/tag",
    answer=tag,
    summary="Find the entities of a text",
    told="The entities of a text in its order; of several texts, a list for each",
    result=TagResponse,
    body=TagRequest,
    examples=TAG_EXAMPLES,
)
