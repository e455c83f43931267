"""Limit for the number of open requests, which are read and not yet answered.

scheduling/admission.py bounds the tokens that wait for a model. A flood of small requests has few tokens: the event
loop, which reads and parses requests, is the bottleneck, and requests would pile up in front of the admission.
A request whose body or answer is on its way is not counted: slow clients cannot shut out others.
"""

from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clozeline.serving import HEALTH_PATHS
from clozeline.serving.edge.access import SECURITY_HEADERS
from clozeline.serving.errors import ApiError
from clozeline.serving.models.service import Service
from clozeline.serving.protocols.dialects import refusal
from clozeline.serving.protocols.model_prefix import without_prefix
from clozeline.serving.scheduling.admission import Refusal
from clozeline.serving.scheduling.refusals import overloaded

MAX_REQUESTS = 512
"""Maximum number of open requests, as in text-embeddings-inference: the event loop handles this many small ones in
about 1 s.
"""
MAX_OF_ONE = 32
"""Maximum number of open requests on one connection (HTTP pipelining), which are answered one after the other."""
_VISIT = "clozeline.visit"
"""Key of a scope: the `Visit` of the request. Uncounted paths have none."""
_UNCOUNTED = HEALTH_PATHS | {"/metrics"}
CROWDED: Final = "crowded"


@dataclass(eq=False, slots=True)
class OpenRequests:
    """Number of open requests: of a server, or of one of its connections. Used in the event loop only."""

    num: int = 0


@dataclass(eq=False, slots=True)
class Visit:
    """One request."""

    of_all: OpenRequests
    of_connection: OpenRequests
    is_counted: bool = False
    is_refused: bool = False

    def enter(self) -> None:
        """Count the request, which is read now, or refuse it if too many are open."""
        self.is_refused = self.of_all.num >= MAX_REQUESTS or self.of_connection.num >= MAX_OF_ONE
        self._count(not self.is_refused)

    def leave(self) -> None:
        """Uncount the request: its answer begins, or its client left."""
        self._count(False)

    def _count(self, is_counted: bool) -> None:
        for open_requests in (self.of_all, self.of_connection):
            open_requests.num += is_counted - self.is_counted
        self.is_counted = is_counted


def expect(scope: Scope, of_all: OpenRequests, of_connection: OpenRequests) -> None:
    """Give the request of `scope`, whose head is read, its `Visit`."""
    if without_prefix(scope)["path"] not in _UNCOUNTED:
        scope[_VISIT] = Visit(of_all, of_connection)


def visit_of(scope: Scope) -> Visit | None:
    visit: Visit | None = scope.get(_VISIT)
    return visit


def crowded() -> ApiError:
    return overloaded(
        Refusal(
            CROWDED,
            given=f"{MAX_REQUESTS} open requests, or {MAX_OF_ONE} on this connection",
            expected="fewer requests at once",
            retry_after_seconds=1,
        )
    )


class OpenRequestsBound:
    """Outermost middleware: answers 429 to refused requests at once, and uncounts the others once they are answered.

    The body of some requests is still on its way here: edge/body_limit.py refuses those.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._metrics = service.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = visit_of(scope)
        if visit is None:
            await self._app(scope, receive, send)
            return
        if visit.is_refused:
            self._metrics.rejected(CROWDED)
            answer = refusal(crowded(), scope)
            answer.headers.update(SECURITY_HEADERS)
            await answer(scope, receive, send)
            return

        async def leaving(message: Message) -> None:
            if message["type"] == "http.response.start":
                visit.leave()
            await send(message)

        try:
            await self._app(scope, receive, leaving)
        finally:
            visit.leave()
