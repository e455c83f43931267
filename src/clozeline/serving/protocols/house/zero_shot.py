"""/zero-shot: labels that nobody trained, which a client names with the text."""

from typing import Annotated

from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.inference.classifier import Classifier
from clozeline.inference.classifier import LabelScore as Scored
from clozeline.inference.encoder import Encoder
from clozeline.inference.zero_shot import ONE_BLANK, TEMPLATE, choosing_by_cloze, choosing_by_entailment, chosen
from clozeline.serving.errors import problem
from clozeline.serving.protocols.fields import MAX_TOP_K, ModelName, RequestBody, Text, Truncate
from clozeline.serving.protocols.house.classify import LabelScore
from clozeline.serving.protocols.operation import Call, Example, JsonResponse, Operation
from clozeline.serving.scheduling.work import ServedModel


class ZeroShotParameters(RequestBody):
    candidate_labels: Annotated[
        list[Text],
        Field(min_length=1, max_length=MAX_TOP_K, description="For an encoder, of words that are one token each."),
    ]
    multi_label: Annotated[bool, Field(description="Score each label for itself; only a model of entailment can.")] = (
        False
    )
    hypothesis_template: Annotated[
        str,
        # Documented as it is checked, by who has more to say of it than that a pattern does not match.
        Field(
            max_length=1_000, description="With {} where the label belongs.", json_schema_extra={"pattern": ONE_BLANK}
        ),
    ] = TEMPLATE


class ZeroShotRequest(RequestBody):
    inputs: Text
    parameters: ZeroShotParameters
    truncate: Truncate = False
    model: ModelName = None


class ZeroShotLists(BaseModel):
    """As clients before 2026 read it."""

    sequence: str
    labels: list[str]
    scores: list[float]


_LABELS = {"candidate_labels": ["list", "file"]}
ZERO_SHOT_EXAMPLES = {
    "two labels": Example("Two labels", {"inputs": "Open it for reading.", "parameters": _LABELS}),
    "template": Example(
        "A prompt of your own",
        {
            "inputs": "Open it for reading.",
            "parameters": {**_LABELS, "hypothesis_template": "Here a {} is used."},
        },
    ),
}


async def zero_shot(call: Call, body: ZeroShotRequest) -> Response:
    """By entailment where a served model tells it, else by what an encoder fills into the prompt."""
    scores, headers = await _scores(call, body)
    return JsonResponse(scores, headers=headers)


async def zero_shot_lists(call: Call, body: ZeroShotRequest) -> Response:
    scores, headers = await _scores(call, body)
    told = ZeroShotLists(
        sequence=body.inputs, labels=[one.label for one in scores], scores=[one.score for one in scores]
    )
    return JsonResponse(told.model_dump(), headers=headers)


_Scores = tuple[list[Scored], dict[str, str]]
"""The labels, and the headers that tell who scored them."""


async def _scores(call: Call, body: ZeroShotRequest) -> _Scores:
    served = call.models.zero_shot(call.wanted(body.model))
    model = served.model
    if isinstance(model, Classifier):
        scores, headers = await _by_entailment(call, ServedModel(served.identity, model), body)
    else:
        assert isinstance(model, Encoder), "no other model can be asked here"
        scores, headers = await _by_cloze(call, ServedModel(served.identity, model), body)
    call.service.metrics.confident(served.identity.name, [scores[0].score])
    return scores, headers


async def _by_entailment(call: Call, served: ServedModel[Classifier], body: ZeroShotRequest) -> _Scores:
    wanted = body.parameters
    labels, template = wanted.candidate_labels, wanted.hypothesis_template
    reply = await call.ask(
        served,
        [body.inputs] * len(labels),
        lambda: choosing_by_entailment(served.model, body.inputs, labels, template=template, truncate=body.truncate),
    )
    return chosen(labels, reply.answers, multi_label=wanted.multi_label), reply.headers


async def _by_cloze(call: Call, served: ServedModel[Encoder], body: ZeroShotRequest) -> _Scores:
    wanted = body.parameters
    if wanted.multi_label:
        raise problem(
            422,
            "labels_compete",
            "the labels of an encoder compete for one blank",
            given="multi_label: true",
            expected="false, or a served classifier that was trained on entailment",
            do="leave `multi_label` out, or start the server with such a model too",
            param="parameters.multi_label",
        )
    labels, template = wanted.candidate_labels, wanted.hypothesis_template
    reply = await call.ask(
        served,
        [body.inputs],
        lambda: choosing_by_cloze(served.model, body.inputs, labels, template=template, truncate=body.truncate),
    )
    return reply.answers[0], reply.headers


def _place(number: int) -> str:
    return "inputs"


ZERO_SHOT = Operation(
    path="/zero-shot",
    answer=zero_shot,
    summary="Choose among labels that nobody trained",
    told="The labels with their probabilities, best first",
    result=list[LabelScore],
    body=ZeroShotRequest,
    examples=ZERO_SHOT_EXAMPLES,
    place=_place,
)
