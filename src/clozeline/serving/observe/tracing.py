"""Who is told of each request as it went through the server: nobody, or OpenTelemetry where that is asked for."""

from dataclasses import dataclass
from typing import Protocol

from starlette.types import ASGIApp

from clozeline.serving.observe.identity import Identity


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
    from clozeline.serving.observe.spans import Spans

    return Spans.to_collector()
