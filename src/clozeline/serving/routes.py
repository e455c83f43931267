"""The routes that models answer."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Body, Request, Response

from clozeline.inference.classifier import Classifier, LabelScore
from clozeline.inference.tokenization import Given, each_text
from clozeline.serving import schemas
from clozeline.serving.bodies import JsonRoute
from clozeline.serving.errors import problem
from clozeline.serving.masks import filling
from clozeline.serving.models.service import service_of
from clozeline.serving.openapi import CLASSIFY_EXAMPLES, EMBED_EXAMPLES, FILL_MASK_EXAMPLES, answered
from clozeline.serving.protocols.dialects import HUGGING_FACE
from clozeline.serving.protocols.model_prefix import wanted_model
from clozeline.serving.responses import JsonResponse
from clozeline.serving.vectors import check_dimensions, encoded

router = APIRouter(route_class=JsonRoute)

_DEFAULT_NUM_CANDIDATES = 5
_DEFAULT_NUM_LABELS = 5
_CLASSIFY = "/classify"


@router.post(
    "/fill-mask",
    summary="Fill the masks of a text",
    response_model=schemas.FillMaskResponse,
    responses=answered("Candidates of a mask, best first: for one text, or a list of them, as was sent"),
)
async def fill_mask(
    request: Request,
    body: Annotated[schemas.FillMaskRequest, Body(openapi_examples=FILL_MASK_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    service = service_of(request)
    served = service.catalogue.encoder(wanted_model(request, body.model))
    texts = served.model.with_own_masks(texts_of(body.inputs))
    parameters = body.parameters or schemas.FillMaskParameters()
    top_k, targets = parameters.top_k or _DEFAULT_NUM_CANDIDATES, parameters.targets
    reply = await service.asking.ask(
        request,
        served,
        texts,
        lambda: filling(served.model, texts, top_k=top_k, targets=targets, truncate=body.truncate),
        timeout_milliseconds,
    )
    service.metrics.confident(served.identity.name, (mask[0].score for masks in reply.answers for mask in masks))
    shaped = [masks[0] if len(masks) == 1 else masks for masks in reply.answers]
    return JsonResponse(shaped[0] if isinstance(body.inputs, str) else shaped, headers=reply.headers)


@router.post(
    "/embed",
    summary="Embed texts as vectors of length 1",
    response_model=schemas.EmbedResponse,
    responses=answered("One vector for each text", HUGGING_FACE),
)
async def embed(
    request: Request,
    body: Annotated[schemas.EmbedRequest, Body(openapi_examples=EMBED_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    service = service_of(request)
    served = service.catalogue.embedder(wanted_model(request, body.model))
    check_dimensions(served.model, body.dimensions)
    texts = texts_of(body.inputs)
    reply = await service.asking.ask(
        request,
        served,
        texts,
        lambda: served.model.embedding(texts, truncate=body.truncate),
        timeout_milliseconds,
    )
    return JsonResponse(encoded(reply.answers, body.dimensions, "float"), headers=reply.headers)


@router.post(
    _CLASSIFY,
    summary="Label texts, or pairs of them",
    response_model=schemas.ClassifyResponse,
    responses=answered("For each text its likeliest labels, best first"),
)
async def classify(
    request: Request,
    body: Annotated[schemas.ClassifyRequest, Body(openapi_examples=CLASSIFY_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    service = service_of(request)
    catalogue, given = service.catalogue, given_in(body.inputs)
    of_pairs, model = isinstance(given[0], tuple), wanted_model(request, body.model)
    served = catalogue.pair_classifier(_CLASSIFY, model) if of_pairs else catalogue.classifier(model)
    parameters = body.parameters or schemas.ClassifyParameters()
    wanted, function = parameters.labels, parameters.function_to_apply
    if wanted is not None:
        check_labels(served.model, wanted)
    num_labels = len(served.model.manifest.labels)
    reply = await service.asking.ask(
        request,
        served,
        each_text(given),
        lambda: served.model.classifying(given, top_k=num_labels, truncate=body.truncate, function=function),
        timeout_milliseconds,
    )
    if function in (None, served.model.manifest.label_scores):
        service.metrics.confident(served.identity.name, (scores[0].score for scores in reply.answers))
    top_k = parameters.top_k or (_DEFAULT_NUM_LABELS if wanted is None else num_labels)
    return JsonResponse([_chosen(scores, wanted, top_k) for scores in reply.answers], headers=reply.headers)


def texts_of(inputs: str | list[str]) -> list[str]:
    return [inputs] if isinstance(inputs, str) else inputs


def given_in(inputs: str | schemas.Pair | Sequence[str | schemas.Pair]) -> list[Given]:
    """Texts, or pairs of them, as a model reads them."""
    listed = [inputs] if isinstance(inputs, str | schemas.Pair) else inputs
    return [(one.text, one.text_pair) if isinstance(one, schemas.Pair) else one for one in listed]


def check_labels(classifier: Classifier, wanted: list[str]) -> None:
    known = classifier.manifest.labels
    for label in wanted:
        if label not in known:
            raise problem(
                404,
                "no_such_label",
                "the model has no such label",
                given=label,
                expected=f"one of: {', '.join(known)}",
                do="choose from the `labels` of this model in /models",
                param="parameters.labels",
            )


def _chosen(scores: list[LabelScore], wanted: list[str] | None, top_k: int) -> list[LabelScore]:
    return [score for score in scores if wanted is None or score.label in wanted][:top_k]
