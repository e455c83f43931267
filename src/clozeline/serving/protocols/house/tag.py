"""/tag: entities of a text, with the field names of Hugging Face's token-classification task."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from clozeline.inference.entities import OUTSIDE, Aggregation
from clozeline.inference.entities import Entity as Group
from clozeline.inference.entities import Tagged as Found
from clozeline.inference.tagger import Tagger
from clozeline.serving.models.catalogue import Ability
from clozeline.serving.protocols.dataframes import Params, Records, Sent
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

TAGGING = Ability(Tagger)


class TagReading(RequestBody):
    aggregation_strategy: Annotated[
        Aggregation,
        Field(
            description="none: single tokens; simple: groups of adjacent tokens of one type; first, average, max: "
            "groups of whole words, tagged by the first token, the mean of the tokens, or the most confident token."
        ),
    ] = "simple"
    stride: Annotated[
        TokenOverlap | None,
        Field(description="Tokens that adjacent windows of a long text share, at most half; null: a quarter."),
    ] = None


class TagParameters(TagReading):
    ignore_labels: list[str] = Field(
        default_factory=lambda: [OUTSIDE], max_length=MAX_TOP_K, description="Types to leave out of the answer."
    )


class TaggedSpan(RequestBody):
    """Type and place of an entity, without its text and score."""

    entity_group: str
    start: Annotated[int, Field(ge=0, description="First character in the text.")]
    end: Annotated[int, Field(ge=0)]


class TagRequest(RequestBody):
    inputs: Inputs
    parameters: TagParameters | None = None
    model: ModelName = None


class _Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    score: float = Field(ge=0, le=1.001, description="Mean probability of the tag over the tokens or words.")
    word: str
    start: int = Field(ge=0, description="First character in the text.")
    end: int = Field(ge=0)


class Entity(_Place):
    entity_group: str


class TaggedToken(_Place):
    entity: str
    index: int = Field(
        ge=0, description="Position of the token in the text as the model reads it, including special tokens."
    )


_Tagged = list[Entity] | list[TaggedToken]
TagResponse = _Tagged | list[_Tagged]
"""Mirrors the request: the entities of one text, or a list of entities for each of several texts."""

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
    """A text that is too long for the model is read in overlapping windows and is never cut."""
    served = call.served(TAGGING, body.model)
    wanted = body.parameters or TagParameters()
    found, headers = await tagged(call, served, texts_of(body.inputs), wanted, wanted.ignore_labels)
    if wanted.aggregation_strategy != "none":
        identity, best = (
            served.identity,
            [entities_of(one for one in of_text if isinstance(one, Group)) for of_text in found],
        )
        headers = headers | call.service.given.keep(identity.name, identity.version, best, are_entities=True)
    return JsonResponse(found[0] if isinstance(body.inputs, str) else found, headers=headers)


def entities_of(entities: Iterable[Group | TaggedSpan]) -> frozenset[tuple[str, int, int]]:
    """Return what feedback compares: the type and place of each entity, in any order."""
    return frozenset((entity.entity_group, entity.start, entity.end) for entity in entities)


Tagged = tuple[list[Found], dict[str, str]]
"""Entities of each text, and headers that name the model."""


async def tagged(
    call: Call,
    served: ServedModel[Tagger],
    texts: list[str],
    wanted: TagReading | None = None,
    ignored: Sequence[str] = (OUTSIDE,),
) -> Tagged:
    """Return the entities of each text. Raises what `Call.ask` raises."""
    wanted = wanted or TagReading()
    reply = await call.ask(served, texts, lambda: served.model.tagging(texts, overlap=wanted.stride))
    found = await call.finished(
        reply,
        lambda: served.model.entities(texts, reply.answers, strategy=wanted.aggregation_strategy, ignored=ignored),
        texts,
    )
    call.service.metrics.confident(served.identity.name, (entity.score for of_text in found for entity in of_text))
    return found, reply.headers


async def records(call: Call, name: str, sent: Sent, params: Params) -> Records:
    """Answer like MLflow's scoring server."""
    found, headers = await tagged(call, call.served(TAGGING, name), sent.texts())
    return [{"entities": of_text} for of_text in found], headers


TAG = Operation(
    path="/tag",
    answer=tag,
    summary="Find the entities of a text",
    result_description="The entities of the text, in order; a list for each of several texts",
    result=TagResponse,
    ability=TAGGING,
    body=TagRequest,
    examples=TAG_EXAMPLES,
)
