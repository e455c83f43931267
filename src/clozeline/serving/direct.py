"""The short way of requests of which nothing has to be found out: the path is a route's, and the body is what it reads.

FastAPI goes through all routes for each request, works out anew what its function takes, and what to close behind it:
a quarter to a third of what a server's event loop does for a text (measured, beside two busy workers). It still has
every other request, and so every word about what is wrong with one.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from clozeline.serving.edge.body_limit import replaying
from clozeline.serving.models.answer_cache import AnswerCache

_TAKEN = {"request", "body", "timeout_milliseconds"}
"""What a function takes that can be called from here; the last has a default."""
_TYPE = b"content-type"
_JSON = (_TYPE, b"application/json")
_TO_BE_READ = (_TYPE, b"x-timeout-ms", b"content-encoding")
"""Headers that say more than that the body is JSON."""


@dataclass(frozen=True, slots=True)
class _Known:
    route: APIRoute
    answer: Callable[[Request, Any], Awaitable[Response]]
    body: TypeAdapter[Any]

    def read(self, raw: bytes) -> object:
        """The body that `raw` is; None: it is not one."""
        try:
            return self.body.validate_python(orjson.loads(raw))
        except (orjson.JSONDecodeError, ValidationError):
            return None


class Direct:
    """Between `app`, which has all routes, and what is around it."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute], cache: AnswerCache) -> None:
        self._app = app
        self._known = {} if cache.is_on else {known.route.path: known for known in map(_known, routes) if known}

    @property
    def paths(self) -> frozenset[str]:
        """Of the routes that are called from here."""
        return frozenset(self._known)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = self._known.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if known is None or not _is_plain(scope["headers"]):
            await self._app(scope, receive, send)
            return
        raw: bytes = (await receive()).get("body", b"")  # whole: body_limit.py has read it
        body = known.read(raw)
        if body is None:
            await self._app(scope, replaying(raw, receive), send)
            return
        scope["route"] = known.route
        response = await known.answer(Request(scope, receive), body)
        await response(scope, receive, send)


def _known(route: BaseRoute) -> _Known | None:
    if not isinstance(route, APIRoute) or route.methods != {"POST"} or "{" in route.path:
        return None
    parameters = inspect.signature(route.endpoint).parameters
    if "body" not in parameters or not parameters.keys() <= _TAKEN:
        return None
    body: Any = parameters["body"].annotation
    return _Known(route, route.endpoint, TypeAdapter(body))


def _is_plain(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """JSON as it is and nothing else, and no wish for another time than the server's own."""
    is_json = False
    for header in headers:
        if header == _JSON:
            is_json = True
        elif header[0] in _TO_BE_READ:
            return False
    return is_json
