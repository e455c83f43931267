"""One log line and one count for each request, without anything a client wrote: no text, query or unknown path."""

import logging
import time

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clozeline.serving import HEALTH_PATHS
from clozeline.serving.models.service import Service
from clozeline.serving.observe.tracing import shown_method, shown_route, shown_status

_LOG = logging.getLogger(__name__)
_QUIET = HEALTH_PATHS | {"/metrics"}


class RequestLog:
    """Logs `POST /embed 200 3.1 ms`; health checks and `/metrics` at debug level only."""

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
                status = shown_status(scope, message)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            if "endpoint" not in scope:
                scope["endpoint"] = _endpoint_at(scope)
            path = shown_route(scope)
            level = logging.DEBUG if path in _QUIET else logging.INFO
            seconds = time.perf_counter() - started
            self._service.metrics.request(path, status, seconds)
            _LOG.log(level, "%s %s %s %.1f ms", shown_method(scope), path, status or "gone", 1000 * seconds)


def _endpoint_at(scope: Scope) -> object:
    """Return the endpoint of a request that was refused before routing; None if no route matches."""
    routes: list[BaseRoute] = scope["app"].routes
    found = (route.matches(scope) for route in routes)
    return next((child["endpoint"] for match, child in found if match is not Match.NONE), None)
