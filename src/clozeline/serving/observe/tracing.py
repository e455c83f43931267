"""What is told of a request, in its line of the log and in its span: nothing that a client wrote; and who hears it."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from starlette.types import ASGIApp, Message, Scope

from clozeline.serving.observe.identity import Identity

_CLIENT_LEFT = 499
LISTENER = "clozeline.listener"
"""Key of a scope under which wire.py gives the transport that the answer will take."""


def told_route(scope: Scope) -> str:
    """The route that was asked for, as the application wrote it: each endpoint has a path."""
    path: str = getattr(scope.get("endpoint"), "path", "(no route)")
    return path


def told_status(scope: Scope, start: Message) -> int:
    """The status of the answer that begins with `start`; 499 where nobody is there to hear it."""
    listener: asyncio.BaseTransport | None = scope.get(LISTENER)
    status: int = start["status"]
    return _CLIENT_LEFT if listener and listener.is_closing() else status


def told_method(scope: Scope) -> str:
    """The method, which is the client's word too: any token is one."""
    method: str = scope["method"]
    return method[:10] if method.isalpha() else "?"


@dataclass(frozen=True, slots=True)
class Moments:
    """Of one request, in seconds of a monotonic clock."""

    arrived: float
    submitted: float
    """Tokenized and admitted."""
    started: float
    """Its first text ran."""
    answered: float


class Tracing(Protocol):
    def around(self, app: ASGIApp) -> ASGIApp:
        """`app`, each of its requests traced."""
        ...

    def answered(self, identity: Identity, moments: Moments, num_texts: int, tokens: int) -> None:
        """The request that is being handled went through these moments."""
        ...

    def close(self) -> None:
        """Send what has not been sent."""
        ...


class NoTracing:
    """The default."""

    def around(self, app: ASGIApp) -> ASGIApp:
        return app

    def answered(self, identity: Identity, moments: Moments, num_texts: int, tokens: int) -> None: ...

    def close(self) -> None: ...


def tracing(is_on: bool) -> Tracing:
    """OpenTelemetry, whose SDK is not even imported unless it is on."""
    if not is_on:
        return NoTracing()
    from clozeline.serving.observe.trace_spans import Spans

    return Spans.to_collector()
