"""All protocols of the server, and one path at work: it reads the body, lets its protocol answer, and may cache that.

To add a protocol, write a file with a `Dialect` and list it here.

Hugging Face's pipelines, `{"inputs", "parameters"}` as `huggingface_hub.InferenceClient` posts it to a URL, have the
requests and answers of other paths. Labels come nested here, a list for each text; /predict has them flat.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from http import HTTPStatus

from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from clozeline.inference.package import MODEL_KINDS, resolved
from clozeline.serving import asking, loading, models
from clozeline.serving.http.bodies import TimeoutMilliseconds, asked_path, parse_json, read_json, unusable
from clozeline.serving.http.house_labels import ANSWER, CLASSIFY, TAG, ZERO_SHOT, ZeroShotLists, zero_shot_lists
from clozeline.serving.http.house_texts import COMPLETE, FILL_MASK
from clozeline.serving.http.mlflow import MLFLOW
from clozeline.serving.http.open_inference import INFERENCE_PROTOCOL, TRITON
from clozeline.serving.http.openai import OPENAI
from clozeline.serving.http.operation import HOUSE_WORDS, Call, Dialect, Dialects, Operation
from clozeline.serving.http.status import FEEDBACK, OPERATIONS
from clozeline.serving.http.tei import EMBED, EMBEDDINGS_INFERENCE, HUGGING_FACE_WORDS, SIMILARITY
from clozeline.serving.http.tensors import AnswerKind

TIMEOUT_HEADER = "x-timeout-ms"
# Approximate memory of a cached answer besides its body and its key.
_ENTRY_BYTES = 512
_TIMEOUT: TypeAdapter[int] = TypeAdapter(TimeoutMilliseconds)


def routes_of_all(dialects: Dialects, service: models.Service) -> list[BaseRoute]:
    endpoints = [Endpoint(operation, service) for operation in dialects.operations]
    named = [endpoint for endpoint in endpoints if "{" in endpoint.path]
    return [
        _Whole(endpoint for endpoint in endpoints if endpoint not in named),
        *(Route(endpoint.path, endpoint, methods=[endpoint.method]) for endpoint in named),
    ]


class _Whole(BaseRoute):
    """All paths without parameters, found in one look-up. Starlette would try one route after the other."""

    def __init__(self, endpoints: Iterable["Endpoint"]) -> None:
        self._endpoints = {endpoint.path: endpoint for endpoint in endpoints}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        endpoint = self._endpoints.get(scope["path"]) if scope["type"] == "http" else None
        return (Match.FULL, {"endpoint": endpoint, "path_params": {}}) if endpoint else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint: Endpoint = scope["endpoint"]
        allowed = ["GET", "HEAD"] if endpoint.method == "GET" else [endpoint.method]
        if scope["method"] not in allowed:
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": ", ".join(allowed)})
        await endpoint(scope, receive, send)


class Endpoint:
    """ASGI application of one path. Its first message is the whole body, which limits.py has read."""

    def __init__(self, operation: Operation, service: models.Service) -> None:
        self.operation = operation
        self._service = service
        self._body = TypeAdapter(operation.body) if operation.body else None
        self.path = operation.path
        self.method = operation.method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await (self._answer(request) if self._body is None else self._answer_to_body(request))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        return await self.operation.answer(Call(request, self._service, self.path))

    async def _answer_to_body(self, request: Request) -> Response:
        raw: bytes = (await request.receive()).get("body", b"")  # the whole body (see the class)
        num_json_bytes = self.operation.read(request.headers, raw)
        timeout_milliseconds = self._timeout_milliseconds(request)
        call = Call(request, self._service, self.path, timeout_milliseconds, raw[num_json_bytes:])
        if loading.VERSION not in request.headers:
            await self._service.turn()
        if self._service.cache.maxsize and self.operation.read is read_json:
            return await self._cached_or_new(call, raw)
        return await self._made(call, raw[:num_json_bytes])

    async def _made(self, call: Call, raw_json: bytes) -> Response:
        assert self._body is not None
        content = parse_json(raw_json)
        try:
            body = self._body.validate_python(content)
        except ValidationError as error:
            raise unusable(error.errors(include_url=False)) from None
        return await self.operation.answer(call, body)

    async def _cached_or_new(self, call: Call, raw: bytes) -> Response:
        """Return the cached answer to the same bytes, or a new answer, which is cached if its status is 200."""
        service = self._service
        pinned = call.request.headers.get(loading.VERSION, "")
        key = (f"{asked_path(call.request.scope)}?{call.request.url.query} {pinned}", raw, service.catalogue.num_swaps)
        kept = service.cache.get(key)
        service.metrics.looked_up_in_cache(was_there=kept is not None)
        if kept:
            # The id belongs to the first request, and a cached answer takes no model time.
            headers = {name: value for name, value in kept.headers.items() if name != models.REQUEST_ID}
            no_time = {name: "0.00" for name in asking.TIMES if name in headers}
            return Response(kept.body, headers=headers | no_time | {"x-cache": "hit"})
        response = await self._made(call, raw)
        size_bytes = len(raw) + len(response.body) + _ENTRY_BYTES
        if response.status_code == HTTPStatus.OK and size_bytes <= service.cache.maxsize:
            service.cache[key] = models.CachedAnswer(bytes(response.body), dict(response.headers), size_bytes)
        return response

    def _timeout_milliseconds(self, request: Request) -> int | None:
        given = request.headers.get(TIMEOUT_HEADER)
        if given is None or not self.operation.is_timed:
            return None
        try:
            return _TIMEOUT.validate_python(given)
        except ValidationError as error:
            raise unusable(error.errors(include_url=False), TIMEOUT_HEADER) from None


_ANSWERS: list[AnswerKind] = [resolved(kind.answers) for kind in MODEL_KINDS.values()]
HOUSE = Dialect(HOUSE_WORDS, (*(one.house for one in _ANSWERS if one.house), ZERO_SHOT, FEEDBACK, *OPERATIONS))
_PIPELINES: Mapping[str, Operation] = {
    "fill-mask": FILL_MASK,
    "text-generation": COMPLETE,
    "feature-extraction": EMBED,
    "text-classification": CLASSIFY,
    "token-classification": TAG,
    "question-answering": replace(ANSWER, result_description="The best answer, or a list if `top_k` is above 1"),
    "sentence-similarity": SIMILARITY,
    "zero-shot-classification": ZERO_SHOT,
    "zero-shot-classification-lists": replace(
        ZERO_SHOT, answer=zero_shot_lists, name="zero_shot_lists", result=ZeroShotLists
    ),
}
HUGGING_FACE = Dialect(
    HUGGING_FACE_WORDS,
    tuple(
        replace(asked, path=f"/pipeline/{task}", name=asked.name or task.replace("-", "_"))
        for task, asked in _PIPELINES.items()
    ),
    tag="Hugging Face",
)
DIALECTS = Dialects((HOUSE, EMBEDDINGS_INFERENCE, OPENAI, HUGGING_FACE, INFERENCE_PROTOCOL, TRITON, MLFLOW))
