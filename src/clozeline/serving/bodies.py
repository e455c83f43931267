"""Routes that read JSON and nothing else: content type, encoding and syntax are checked before the fields are."""

import re
from collections.abc import Callable, Coroutine
from email.message import Message
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers

from clozeline.serving import schemas
from clozeline.serving.errors import problem
from clozeline.serving.models.service import service_of
from clozeline.serving.protocols.model_prefix import asked_path
from clozeline.serving.scheduling.asking import TIMES

_JSON_TYPE = re.compile(r"application/(.+\+)?json")
_UTF_8 = ("utf-8", "utf8")
_AS_IT_IS = ("identity", "")
_TIMEOUT: TypeAdapter[int | None] = TypeAdapter(schemas.TimeoutMilliseconds)


class JsonRoute(APIRoute):
    """Answers 415 to another content type or encoding, 400 to what is not JSON (UTF-8, no lone surrogates, no NaN)."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        reads_body = self.body_field is not None

        async def handle_json(request: Request) -> Response:
            if not reads_body:
                return await handle(request)
            _check_content_type(request.headers.get("content-type"))
            check_encoding(request.headers)
            if service_of(request).cache.is_on and _says_no_time_or_a_right_one(request):
                return await _kept_or_made(request, handle)
            return await handle(await _parsed(request))

        return handle_json


async def _kept_or_made(request: Request, handle: Callable[[Request], Coroutine[Any, Any, Response]]) -> Response:
    """The answer to the very same body as before, or a new one, which is kept if it is one."""
    service = service_of(request)
    key = (asked_path(request.scope), await request.body(), service.catalogue.num_swaps)
    kept = service.cache.find(key)
    service.metrics.looked_for_a_kept_answer(was_there=kept is not None)
    if kept:
        body, headers = kept
        no_time = {name: "0.00" for name in TIMES if name in headers}  # those that were kept are another request's
        return Response(body, headers=headers | no_time | {"x-cache": "hit"})
    response = await handle(await _parsed(request))
    if response.status_code == HTTPStatus.OK:
        service.cache.keep(key, bytes(response.body), dict(response.headers))
    return response


def _says_no_time_or_a_right_one(request: Request) -> bool:
    """Of the headers that a route reads there is one more; a wrong one is refused whether or not an answer is there."""
    try:
        _TIMEOUT.validate_python(request.headers.get("x-timeout-ms"))
    except ValidationError:
        return False
    return True


class JsonRequest(Request):
    """A request whose body has been read and parsed."""

    raw: bytes
    content: Any

    async def body(self) -> bytes:
        return self.raw

    async def json(self) -> Any:
        return self.content


async def _parsed(request: Request) -> Request:
    parsed = JsonRequest(request.scope, request.receive)
    parsed.raw = await request.body()
    parsed.content = parse_json(parsed.raw)
    return parsed


def parse_json(raw: bytes) -> Any:
    """Raises ApiError: 400, `raw` is not JSON."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise problem(
            400,
            "malformed_json",
            "the body is not JSON",
            given=f"{error.msg} at line {error.lineno}, column {error.colno}" if raw else "an empty body",
            expected='a JSON object in UTF-8, as {"inputs": "…"}',
            do="mend the body; /docs has an example for each route",
        ) from error


def check_encoding(headers: Headers) -> None:
    """Raises ApiError: 415, the body is compressed, or its letters are said to be others than UTF-8."""
    codings = ", ".join(headers.getlist("content-encoding"))
    if any(coding.strip().lower() not in _AS_IT_IS for coding in codings.split(",")):
        raise problem(
            415,
            "compressed_body",
            "the body is compressed, and only plain bodies are read here",
            given=f"content-encoding: {codings}",
            expected="JSON as it is, with no content-encoding",
            do="send it uncompressed; of a large one, the texts in several requests",
            headers={"accept-encoding": "identity"},
        )
    content_type = headers.get("content-type", "")
    if str(_parsed_type(content_type).get_param("charset", "utf-8")).lower() not in _UTF_8:
        raise problem(
            415,
            "not_utf8",
            "the body is said to be in letters that are not read here",
            given=f"content-type: {content_type}",
            expected="JSON in UTF-8, with charset=utf-8 or no charset",
            do="encode the body as UTF-8 and correct the header",
        )


def _check_content_type(given: str | None) -> None:
    if given is None or not _JSON_TYPE.fullmatch(_parsed_type(given).get_content_type()):
        raise problem(
            415,
            "not_json",
            "the body is of a type that is not read here",
            given=f"content-type: {given}" if given else "no content-type",
            expected="content-type: application/json",
            do="add the header (curl: -H 'content-type: application/json')",
        )


def _parsed_type(content_type: str) -> Message:
    parsed = Message()
    parsed["content-type"] = content_type
    return parsed
