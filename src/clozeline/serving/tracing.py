"""Tracing of requests: whether it is on, and the facts that logs and spans share."""

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Scope

from clozeline.serving.loading import Identity

_CLIENT_LEFT = 499
# Key of a scope: the transport of the answer, set by uvicorn_adapter.py.
LISTENER = "clozeline.listener"


def shown_route(scope: Scope) -> str:
    """Return the route of the request as the application declares it; `(no route)` if none matches."""
    path: str = getattr(scope.get("endpoint"), "path", "(no route)")
    return path


def shown_status(scope: Scope, start: Message) -> int:
    """Return the status of the answer that begins with `start`; 499 if the client has left."""
    listener: asyncio.BaseTransport | None = scope.get(LISTENER)
    status: int = start["status"]
    return _CLIENT_LEFT if listener and listener.is_closing() else status


def shown_method(scope: Scope) -> str:
    """Return the method, shortened or as `?` if odd: HTTP lets a client send any token."""
    method: str = scope["method"]
    return method[:10] if method.isalpha() else "?"


@dataclass(frozen=True, slots=True)
class Moments:
    """Times of one request, in seconds of a monotonic clock."""

    arrived: float
    submitted: float  # time at which it was tokenized, ready for admission
    started: float  # time at which its first text began to run
    answered: float


class Tracing:
    """Traces nothing, which is the default; `trace_spans.Spans` traces each request."""

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return `app` with each request traced."""
        return app

    def answered(self, identity: Identity, moments: Moments, num_texts: int, tokens: int) -> None:
        """Record the moments of the request that is being handled."""

    def close(self) -> None:
        """Send the remaining spans."""


def tracing(is_on: bool) -> Tracing:
    """Return OpenTelemetry tracing if `is_on`. Otherwise its SDK is not even imported."""
    if not is_on:
        return Tracing()
    from clozeline.serving.trace_spans import Spans

    return Spans.to_collector()
