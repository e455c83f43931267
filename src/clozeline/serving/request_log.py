"""One line and one count for each request; nothing in them that a client wrote: no text, no query, no unknown path."""

import asyncio
import logging
import time

from fastapi.routing import iter_route_contexts
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clozeline.serving import HEALTH_PATHS
from clozeline.serving.service import Service

_LOG = logging.getLogger(__name__)
_QUIET = HEALTH_PATHS | {"/metrics"}
_CLIENT_LEFT = 499
LISTENER = "clozeline.listener"
"""Key of a scope under which wire.py gives the transport that the answer will take."""


class RequestLog:
    """`POST /embed 200 3.1 ms`; those that machines repeat are told at debug level only."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = told_status(scope, message)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            if "route" not in scope:
                scope["route"] = _route_at(scope)
            path = told_route(scope)
            level = logging.DEBUG if path in _QUIET else logging.INFO
            seconds = time.perf_counter() - started
            self._service.metrics.request(path, status, seconds)
            _LOG.log(level, "%s %s %s %.1f ms", told_method(scope), path, status or "gone", 1000 * seconds)


def told_route(scope: Scope) -> str:
    """The route that was asked for, as the application wrote it."""
    path: str = getattr(scope.get("route"), "path", "(no route)")
    return path


def _route_at(scope: Scope) -> BaseRoute | None:
    """The route at the path of a request that was refused before anybody looked for one, or that is a HEAD."""
    routes = (context.original_route for context in iter_route_contexts(scope["app"].routes))
    return next((route for route in routes if route.matches(scope)[0] is not Match.NONE), None)


def told_status(scope: Scope, start: Message) -> int:
    """The status of the answer that begins with `start`; 499 where nobody is there to hear it."""
    listener: asyncio.BaseTransport | None = scope.get(LISTENER)
    status: int = start["status"]
    return _CLIENT_LEFT if listener and listener.is_closing() else status


def told_method(scope: Scope) -> str:
    """The method, which is the client's word too: any token is one."""
    method: str = scope["method"]
    return method[:10] if method.isalpha() else "?"
