"""The routes of models that point into a text: taggers, and those that answer questions."""

from typing import Annotated

from fastapi import APIRouter, Body, Request, Response

from clozeline.serving import schemas, span_schemas
from clozeline.serving.bodies import JsonRoute
from clozeline.serving.models.service import service_of
from clozeline.serving.openapi import ANSWER_EXAMPLES, TAG_EXAMPLES, answered
from clozeline.serving.protocols.model_prefix import wanted_model
from clozeline.serving.responses import JsonResponse
from clozeline.serving.routes import texts_of

router = APIRouter(route_class=JsonRoute)


@router.post(
    "/tag",
    summary="Find the entities of a text",
    response_model=span_schemas.TagResponse,
    responses=answered("The entities of a text in its order; of several texts, a list for each"),
)
async def tag(
    request: Request,
    body: Annotated[span_schemas.TagRequest, Body(openapi_examples=TAG_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    """A text longer than the model reads is read in windows that overlap; nothing is cut."""
    service = service_of(request)
    served = service.catalogue.tagger(wanted_model(request, body.model))
    texts, wanted = texts_of(body.inputs), body.parameters or span_schemas.TagParameters()
    reply = await service.asking.ask(
        request, served, texts, lambda: served.model.tagging(texts, overlap=wanted.stride), timeout_milliseconds
    )
    found = await service.asking.finished(
        reply,
        lambda: served.model.entities(
            texts, reply.answers, strategy=wanted.aggregation_strategy, ignored=wanted.ignore_labels
        ),
        sum(map(len, texts)),
    )
    service.metrics.confident(served.identity.name, (entity.score for of_text in found for entity in of_text))
    return JsonResponse(found[0] if isinstance(body.inputs, str) else found, headers=reply.headers)


@router.post(
    "/answer",
    summary="Answer a question from a context",
    response_model=span_schemas.AnswerResponse,
    responses=answered("The stretch of the context that answers the question; more than one, if asked for"),
)
async def answer(
    request: Request,
    body: Annotated[span_schemas.AnswerRequest, Body(openapi_examples=ANSWER_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    """A context longer than the model reads is read in windows that overlap; nothing is cut."""
    service = service_of(request)
    served = service.catalogue.answerer(wanted_model(request, body.model))
    wanted = body.parameters or span_schemas.AnswerParameters()
    top_k = wanted.top_k or 1
    pairs = [(body.inputs.question, body.inputs.context)]
    search, reading = wanted.spans(top_k), wanted.reading()
    reply = await service.asking.ask(
        request,
        served,
        pairs[0],
        lambda: served.model.asking(pairs, search=search, reading=reading),
        timeout_milliseconds,
    )
    (answers,) = await service.asking.finished(
        reply, lambda: served.model.best(pairs, reply.answers, search=search), sum(map(len, pairs[0]))
    )
    service.metrics.confident(served.identity.name, (one.score for one in answers[:1]))
    return JsonResponse(answers[0] if top_k == 1 else answers, headers=reply.headers)
