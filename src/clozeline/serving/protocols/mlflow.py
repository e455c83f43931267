"""MLflow's scoring server: /invocations in its four shapes, /ping and /version; the answers are those of
`mlflow.pyfunc.load_model(…).predict`, as registry/served_model.py gives them.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from importlib.metadata import version
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response
from fastapi.openapi.models import Example
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError
from starlette.responses import PlainTextResponse

from clozeline.inference.encoder import Encoder
from clozeline.inference.manifest import Task
from clozeline.inference.question import AnyQuestion
from clozeline.inference.spans import SpanSearch
from clozeline.inference.tokenization import Given, each_text
from clozeline.serving import schemas, span_schemas, status_routes
from clozeline.serving.bodies import JsonRoute
from clozeline.serving.masks import filling
from clozeline.serving.models.service import Service, service_of
from clozeline.serving.openapi import NOT_READY, answered, beside_text, not_ready
from clozeline.serving.protocols.dataframes import DataframeSplit, Sent
from clozeline.serving.protocols.dialects import MLFLOW
from clozeline.serving.protocols.model_prefix import wanted_model
from clozeline.serving.protocols.span_outputs import check_answer_size
from clozeline.serving.responses import JsonResponse

router = APIRouter(route_class=JsonRoute, tags=["MLflow"])

_PAIR, _QUESTION = ("text", "text_pair"), ("question", "context")
_SHAPES = ("dataframe_split", "dataframe_records", "instances", "inputs")
_TEXT: dict[str, Any] = {"type": "string"}
_TEXTS: dict[str, Any] = {"type": "array", "items": _TEXT}
_RECORDS: dict[str, Any] = {"type": "array", "items": {"type": "object"}}


def _given(shape: str) -> JsonDict:
    return {"required": [shape], "properties": {shape: {"not": {"type": "null"}}}}


class Params(schemas.RequestBody):
    top_k: Annotated[schemas.TopK, Field(description="Candidates for each mask, labels for each text, or answers.")] = 5
    truncate: schemas.Truncate = False
    model: schemas.ModelName = None


class InvocationsRequest(schemas.RequestBody):
    """Exactly one of the four shapes. Of several columns, the one called `text` is read; a classifier of pairs reads
    `text` and `text_pair`, a question answerer `question` and `context`, each also as JSON in one text.
    """

    model_config = ConfigDict(json_schema_extra={"oneOf": [_given(shape) for shape in _SHAPES]})

    dataframe_split: DataframeSplit | None = None
    dataframe_records: list[dict[str, Any]] | None = None
    instances: Annotated[Any, WithJsonSchema({"anyOf": [_TEXTS, _RECORDS, {"type": "null"}]})] = None
    inputs: Annotated[Any, WithJsonSchema({"anyOf": [_TEXT, _TEXTS, {"type": "object"}, {"type": "null"}]})] = None
    params: Params | None = None

    @model_validator(mode="after")
    def _one_shape(self) -> "InvocationsRequest":
        if sum(getattr(self, shape) is not None for shape in _SHAPES) != 1:
            raise PydanticCustomError(
                "one_shape", "exactly one of dataframe_split, dataframe_records, instances, inputs"
            )
        return self


class Record(BaseModel):
    """Of an encoder `embedding`, and `masks` if it fills them; of a classifier `labels`; of a tagger `entities`; of a
    question answerer `answers`.
    """

    embedding: list[float] | None = None
    masks: list[schemas.Mask] | None = None
    labels: list[schemas.LabelScore] | None = None
    entities: list[span_schemas.Entity] | None = None
    answers: list[span_schemas.Answer] | None = None


class InvocationsResponse(BaseModel):
    predictions: list[Record]


EXAMPLES: dict[str, Example] = {
    "inputs": {"summary": "Texts", "value": {"inputs": ["Return the [MASK] of the list."], "params": {"top_k": 2}}},
    "instances": {"summary": "Instances", "value": {"instances": [{"text": "Open a file."}]}},
    "dataframe_split": {
        "summary": "A dataframe, as its columns and rows",
        "value": {"dataframe_split": {"columns": ["id", "text"], "data": [[1, "Open a file."], [2, "Sort a list."]]}},
    },
    "dataframe_records": {
        "summary": "A dataframe, row by row",
        "value": {"dataframe_records": [{"text": "Open a file."}]},
    },
    "pairs": {
        "summary": "Pairs of texts, of a model that reads pairs",
        "value": {"instances": [{"text": "How do I sort a list?", "text_pair": "Sort a list in place."}]},
    },
    "answers": {
        "summary": "Questions with their contexts, of a model that is asked questions",
        "value": {"instances": [{"question": "Where does Maria live?", "context": "Maria Lopez lives in Oslo."}]},
    },
}


@router.post(
    "/invocations",
    summary="Ask a model as MLflow's scoring server is asked",
    response_model=InvocationsResponse,
    responses=answered("A record for each text", MLFLOW),
)
async def invocations(
    request: Request,
    body: Annotated[InvocationsRequest, Body(openapi_examples=EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    service = service_of(request)
    (shape,) = (shape for shape in _SHAPES if getattr(body, shape) is not None)
    sent = Sent(shape, getattr(body, shape))
    params = body.params or Params()
    served = service.catalogue.answering("/invocations", wanted_model(request, params.model))
    answers = _ANSWERS[served.model.manifest.task]
    records, headers = await answers(service, request, served.identity.name, sent, params, timeout_milliseconds)
    return JsonResponse({"predictions": records}, headers=headers)


@router.get("/ping", summary="As /health/ready", response_model=schemas.Health, responses=NOT_READY)
async def ping(request: Request) -> Response:
    return await status_routes.ready(request)


@router.get(
    "/version",
    summary="Of MLflow, whose protocol this is",
    response_class=PlainTextResponse,
    responses=beside_text(not_ready(MLFLOW)),
)
async def mlflow_version(request: Request) -> Response:
    return PlainTextResponse(version("mlflow"))


Answered = tuple[list[dict[str, Any]], dict[str, str]]
"""The records, and the headers that tell who gave them."""


async def _labelled(
    service: Service, request: Request, name: str, sent: Sent, params: Params, timeout: int | None
) -> Answered:
    served = service.catalogue.classifier(name)
    given: Sequence[Given] = sent.pairs(_PAIR) if served.model.manifest.reads_pairs else sent.texts()
    reply = await service.asking.ask(
        request,
        served,
        each_text(given),
        lambda: served.model.classifying(given, top_k=params.top_k, truncate=params.truncate),
        timeout,
    )
    service.metrics.confident(name, (labels[0].score for labels in reply.answers))
    return [{"labels": labels} for labels in reply.answers], reply.headers


async def _tagged(
    service: Service, request: Request, name: str, sent: Sent, params: Params, timeout: int | None
) -> Answered:
    served, texts = service.catalogue.tagger(name), sent.texts()
    reply = await service.asking.ask(request, served, texts, lambda: served.model.tagging(texts), timeout)
    found = await service.asking.finished(
        reply, lambda: served.model.entities(texts, reply.answers), sum(map(len, texts))
    )
    service.metrics.confident(name, (entity.score for of_text in found for entity in of_text))
    return [{"entities": of_text} for of_text in found], reply.headers


async def _answered(
    service: Service, request: Request, name: str, sent: Sent, params: Params, timeout: int | None
) -> Answered:
    served, pairs = service.catalogue.answerer(name), sent.pairs(_QUESTION)
    search = SpanSearch(top_k=params.top_k)
    check_answer_size(search.top_k, [context for _, context in pairs], "params.top_k")
    texts = each_text(pairs)
    reply = await service.asking.ask(request, served, texts, lambda: served.model.asking(pairs, search=search), timeout)
    found = await service.asking.finished(
        reply, lambda: served.model.best(pairs, reply.answers, search=search), sum(map(len, texts))
    )
    service.metrics.confident(name, (one.score for answers in found for one in answers[:1]))
    return [{"answers": answers} for answers in found], reply.headers


async def _encoded(
    service: Service, request: Request, name: str, sent: Sent, params: Params, timeout: int | None
) -> Answered:
    served, texts = service.catalogue.embedder(name), sent.texts()
    model = served.model
    places: list[int] = []  # of the texts whose masks are filled: known once they are tokenized

    def questions() -> Iterator[AnyQuestion]:
        yield model.embedding(texts, truncate=params.truncate)
        if not isinstance(model, Encoder):
            return
        own = model.with_own_masks(texts)
        places.extend(model.with_masks(own, truncate=params.truncate))
        if places:
            masked = [own[place] for place in places]
            yield filling(model, masked, top_k=params.top_k, truncate=params.truncate)

    embedded, *filled = await service.asking.ask_together(request, served, texts, lambda: list(questions()), timeout)
    embeddings = [{"embedding": embedding_H} for embedding_H in embedded.answers]
    if not isinstance(model, Encoder):
        return embeddings, embedded.headers
    masks = dict(zip(places, (of_text for reply in filled for of_text in reply.answers), strict=True))
    service.metrics.confident(name, (words[0].score for of_text in masks.values() for words in of_text))
    return [one | {"masks": masks.get(place, [])} for place, one in enumerate(embeddings)], embedded.headers


_ANSWERS: Mapping[Task, Callable[..., Coroutine[Any, Any, Answered]]] = MappingProxyType(
    {
        "fill-mask": _encoded,
        "feature-extraction": _encoded,
        "text-classification": _labelled,
        "token-classification": _tagged,
        "question-answering": _answered,
    }
)
