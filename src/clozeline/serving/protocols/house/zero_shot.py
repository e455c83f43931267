"""/zero-shot: classification by labels that the client names, without training."""

from typing import Annotated

from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.choosing.zero_shot import (
    ONE_BLANK,
    TEMPLATE,
    can_choose,
    choosing_by_cloze,
    choosing_by_entailment,
    chosen,
    tells_entailment,
)
from clozeline.inference.classifier import Classifier
from clozeline.inference.classifier import LabelScore as Scored
from clozeline.inference.encoder import Encoder
from clozeline.inference.open_model import OpenModel
from clozeline.serving.errors import problem
from clozeline.serving.models.catalogue import Ability
from clozeline.serving.protocols.fields import MAX_TOP_K, ModelName, RequestBody, Text, Truncate
from clozeline.serving.protocols.house.classify import LabelScore
from clozeline.serving.protocols.operation import Call, Example, JsonResponse, Operation
from clozeline.serving.scheduling.work import ServedModel

CHOOSING = Ability(
    OpenModel,  # type: ignore[type-abstract]  # isinstance takes any class
    has=can_choose,
    rank=lambda model: not tells_entailment(model),
)
"""If no model is named, entailment models come first."""


class ZeroShotParameters(RequestBody):
    candidate_labels: Annotated[
        list[Text],
        Field(
            min_length=1, max_length=MAX_TOP_K, description="For an encoder, each word of a label has to be one token."
        ),
    ]
    multi_label: Annotated[bool, Field(description="Score each label independently; needs an entailment model.")] = (
        False
    )
    hypothesis_template: Annotated[
        str,
        # The pattern is only documented here: choosing/zero_shot.py checks it, with a better message.
        Field(
            max_length=1_000,
            description="Sentence with {} in place of the label.",
            json_schema_extra={"pattern": ONE_BLANK},
        ),
    ] = TEMPLATE


class ZeroShotRequest(RequestBody):
    inputs: Text
    parameters: ZeroShotParameters
    truncate: Truncate = False
    model: ModelName = None


class ZeroShotLists(BaseModel):
    """Labels and scores in two lists, as huggingface_hub before 1.0 reads them."""

    sequence: str
    labels: list[str]
    scores: list[float]


_LABELS = {"candidate_labels": ["list", "file"]}
ZERO_SHOT_EXAMPLES = {
    "two labels": Example("Two labels", {"inputs": "Open it for reading.", "parameters": _LABELS}),
    "template": Example(
        "A custom template",
        {
            "inputs": "Open it for reading.",
            "parameters": {**_LABELS, "hypothesis_template": "Here a {} is used."},
        },
    ),
}


async def zero_shot(call: Call, body: ZeroShotRequest) -> Response:
    """Chooses by entailment if a served model was trained on it, otherwise by filling the template with an encoder."""
    scores, headers = await _scores(call, body)
    return JsonResponse(scores, headers=headers)


async def zero_shot_lists(call: Call, body: ZeroShotRequest) -> Response:
    scores, headers = await _scores(call, body)
    answer = ZeroShotLists(
        sequence=body.inputs, labels=[one.label for one in scores], scores=[one.score for one in scores]
    )
    return JsonResponse(answer.model_dump(), headers=headers)


_Scores = tuple[list[Scored], dict[str, str]]
"""Scored labels, and headers that name the model."""


async def _scores(call: Call, body: ZeroShotRequest) -> _Scores:
    served = call.served(CHOOSING, body.model)
    model = served.model
    if isinstance(model, Classifier):
        scores, headers = await _by_entailment(call, ServedModel(served.identity, model), body)
    else:
        assert isinstance(model, Encoder), "Catalogue.zero_shot returns no other model"
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
            "an encoder cannot score labels independently",
            given="multi_label: true",
            expected="false, or a served classifier that was trained on entailment",
            do="leave `multi_label` out, or serve such a classifier too",
            param="parameters.multi_label",
        )
    labels, template = wanted.candidate_labels, wanted.hypothesis_template
    reply = await call.ask(
        served,
        [body.inputs],
        lambda: choosing_by_cloze(served.model, body.inputs, labels, template=template, truncate=body.truncate),
    )
    return reply.answers[0], reply.headers


ZERO_SHOT = Operation(
    path="/zero-shot",
    answer=zero_shot,
    summary="Classify a text by labels of your own, without training",
    result_description="The labels with their probabilities, best first",
    result=list[LabelScore],
    ability=CHOOSING,
    body=ZeroShotRequest,
    examples=ZERO_SHOT_EXAMPLES,
    place="inputs".format,
)
