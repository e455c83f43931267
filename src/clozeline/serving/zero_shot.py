"""Routes for labels that nobody trained: a client names them with the text."""

from typing import Annotated

from fastapi import APIRouter, Body, Request, Response
from fastapi.openapi.models import Example
from pydantic import BaseModel, Field

from clozeline.inference.classifier import Classifier, LabelScore
from clozeline.inference.encoder import Encoder
from clozeline.inference.zero_shot import ONE_BLANK, TEMPLATE, choosing_by_cloze, choosing_by_entailment, chosen
from clozeline.serving import schemas
from clozeline.serving.bodies import JsonRoute
from clozeline.serving.errors import problem
from clozeline.serving.limits import MAX_TOP_K
from clozeline.serving.models.catalogue import ServedModel
from clozeline.serving.models.service import Service, service_of
from clozeline.serving.openapi import answered
from clozeline.serving.protocols.dialects import HUGGING_FACE
from clozeline.serving.protocols.model_prefix import wanted_model
from clozeline.serving.responses import JsonResponse

router = APIRouter(route_class=JsonRoute)


class ZeroShotParameters(schemas.RequestBody):
    candidate_labels: Annotated[
        list[schemas.Text],
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


class ZeroShotRequest(schemas.RequestBody):
    inputs: schemas.Text
    parameters: ZeroShotParameters
    truncate: schemas.Truncate = False
    model: schemas.ModelName = None


class ZeroShotLists(BaseModel):
    """As clients before 2026 read it."""

    sequence: str
    labels: list[str]
    scores: list[float]


_LABELS = {"candidate_labels": ["list", "file"]}
ZERO_SHOT_EXAMPLES: dict[str, Example] = {
    "two labels": {"summary": "Two labels", "value": {"inputs": "Open it for reading.", "parameters": _LABELS}},
    "template": {
        "summary": "A prompt of your own",
        "value": {
            "inputs": "Open it for reading.",
            "parameters": {**_LABELS, "hypothesis_template": "Here a {} is used."},
        },
    },
}


@router.post(
    "/zero-shot",
    summary="Choose among labels that nobody trained",
    response_model=list[schemas.LabelScore],
    responses=answered("The labels with their probabilities, best first"),
)
async def zero_shot(
    request: Request,
    body: Annotated[ZeroShotRequest, Body(openapi_examples=ZERO_SHOT_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    """By entailment where a served model tells it, else by what an encoder fills into the prompt."""
    scores, headers = await _scores(request, body, timeout_milliseconds)
    return JsonResponse(scores, headers=headers)


@router.post(
    "/pipeline/zero-shot-classification",
    summary="Choose among labels that nobody trained",
    tags=["Hugging Face"],
    response_model=list[schemas.LabelScore],
    responses=answered("The labels with their probabilities, best first", HUGGING_FACE),
)
async def zero_shot_classification(
    request: Request,
    body: Annotated[ZeroShotRequest, Body(openapi_examples=ZERO_SHOT_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    return await zero_shot(request, body, timeout_milliseconds)


@router.post(
    "/pipeline/zero-shot-classification-lists",
    summary="The same, as huggingface_hub before 1.0 reads it",
    tags=["Hugging Face"],
    response_model=ZeroShotLists,
    responses=answered("The labels, best first, and their probabilities", HUGGING_FACE),
)
async def zero_shot_lists(
    request: Request,
    body: Annotated[ZeroShotRequest, Body(openapi_examples=ZERO_SHOT_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    scores, headers = await _scores(request, body, timeout_milliseconds)
    told = ZeroShotLists(
        sequence=body.inputs, labels=[one.label for one in scores], scores=[one.score for one in scores]
    )
    return JsonResponse(told.model_dump(), headers=headers)


Scored = tuple[list[LabelScore], dict[str, str]]
"""The labels, and the headers that tell who scored them."""


async def _scores(request: Request, body: ZeroShotRequest, timeout: int | None) -> Scored:
    service = service_of(request)
    served = service.catalogue.zero_shot(wanted_model(request, body.model))
    model = served.model
    if isinstance(model, Classifier):
        scored = await _by_entailment(service, request, ServedModel(served.identity, model), body, timeout)
    else:
        assert isinstance(model, Encoder), "no other model can be asked here"
        scored = await _by_cloze(service, request, ServedModel(served.identity, model), body, timeout)
    service.metrics.confident(served.identity.name, [scored[0][0].score])
    return scored


async def _by_entailment(
    service: Service, request: Request, served: ServedModel[Classifier], body: ZeroShotRequest, timeout: int | None
) -> Scored:
    wanted = body.parameters
    labels, template = wanted.candidate_labels, wanted.hypothesis_template
    reply = await service.asking.ask(
        request,
        served,
        [body.inputs] * len(labels),
        lambda: choosing_by_entailment(served.model, body.inputs, labels, template=template, truncate=body.truncate),
        timeout,
    )
    return chosen(labels, reply.answers, multi_label=wanted.multi_label), reply.headers


async def _by_cloze(
    service: Service, request: Request, served: ServedModel[Encoder], body: ZeroShotRequest, timeout: int | None
) -> Scored:
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
    reply = await service.asking.ask(
        request,
        served,
        [body.inputs],
        lambda: choosing_by_cloze(served.model, body.inputs, labels, template=template, truncate=body.truncate),
        timeout,
    )
    return reply.answers[0], reply.headers
