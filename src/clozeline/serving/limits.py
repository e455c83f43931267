"""Middleware that limits open requests and reads their bodies, with limits for size, time and the memory of all.

admission.py bounds the tokens that wait for a model. A flood of small requests has few tokens: the event loop, which
reads and parses requests, is the bottleneck, and requests would pile up in front of it. A request whose body or
answer is on its way is not counted: slow clients cannot shut out others.
"""

import asyncio
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clozeline.serving import access, admission, asking, errors, models
from clozeline.serving.http import bodies, operation

# Maximum number of open requests, as in text-embeddings-inference: the event loop handles this many small ones in about
# 1 s.
MAX_REQUESTS = 512
# Maximum number of open requests on one connection (HTTP pipelining), which are answered one after the other.
MAX_OF_ONE = 32
# Key of a scope: the `Visit` of the request. Uncounted paths have none.
_VISIT = "clozeline.visit"
_UNCOUNTED = errors.HEALTH_PATHS | {"/metrics"}
CROWDED: admission.Reason = "crowded"
MAX_BODY_BYTES = 2 * 2**20
# Longest time from the head of a request to the end of its body.
MAX_BODY_SECONDS = 60.0
# A body that is too large is read and discarded up to this multiple of the limit: a client that is still sending would
# not see an early answer.
_DRAINED_TIMES = 16
_REASONS = {408: "body_too_slow", 413: "body_too_large", 429: "bodies_full"}


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
    if bodies.without_prefix(scope)["path"] not in _UNCOUNTED:
        scope[_VISIT] = Visit(of_all, of_connection)


def visit_of(scope: Scope) -> Visit | None:
    visit: Visit | None = scope.get(_VISIT)
    return visit


def crowded() -> errors.ApiError:
    return asking.overloaded(
        admission.OverloadedError(
            CROWDED,
            given=f"{MAX_REQUESTS} open requests, or {MAX_OF_ONE} on this connection",
            expected="fewer requests at once",
            retry_seconds=1,
        )
    )


class OpenRequestsBound:
    """Outermost middleware: answers 429 to refused requests at once, and uncounts the others once they are answered.

    The body of some requests is still on its way here: `BodyLimit` refuses those.
    """

    def __init__(self, app: ASGIApp, service: models.Service) -> None:
        self._app = app
        self._metrics = service.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = visit_of(scope)
        if visit is None:
            await self._app(scope, receive, send)
            return
        if visit.is_refused:
            self._metrics.rejected(CROWDED)
            answer = operation.refusal(crowded(), scope)
            answer.headers.update(access.SECURITY_HEADERS)
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


@dataclass(frozen=True, slots=True)
class BodyBounds:
    one_bytes: int = MAX_BODY_BYTES
    # Limit for the bodies of all unanswered requests together, over all connections.
    all_bytes: int = 32 * MAX_BODY_BYTES
    seconds: float = MAX_BODY_SECONDS  # longest time from the head to the end of the body


@dataclass(slots=True)
class _Body:
    parts: list[bytes] = field(default_factory=list)
    size_bytes: int = 0  # size as the client sent it
    held_bytes: int = 0  # size of the parts that are kept in memory
    left: bool = False  # whether the client closed the connection before the end of the body


class BodyLimit:
    """Reads each body before the application does, so that the limits hold for every route, and for chunked bodies."""

    def __init__(self, app: ASGIApp, service: models.Service, bounds: BodyBounds | None = None) -> None:
        self._app = app
        self._metrics = service.metrics
        self._bounds = bounds or BodyBounds()
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body()
        try:
            error = await self._read(scope, receive, body)
            if body.left:
                return
            if error:
                self._metrics.rejected(_REASONS[error.status])
                await operation.refusal(error, scope)(scope, receive, send)
                return
            visit = visit_of(scope)
            if visit and visit.is_refused:
                self._metrics.rejected(CROWDED)
                await operation.refusal(crowded(), scope)(scope, receive, send)
                return
            await self._app(scope, _replaying(b"".join(body.parts), receive), send)
        finally:
            self._held_bytes -= body.held_bytes

    async def _read(self, scope: Scope, receive: Receive, body: _Body) -> errors.ApiError | None:
        """Read the body into `body`; return an error if it exceeds a limit."""
        bounds = self._bounds
        is_announced_too_large = _asks_first(scope) > bounds.one_bytes
        try:
            async with asyncio.timeout(bounds.seconds):
                if not is_announced_too_large:
                    await self._take(receive, body)
        except TimeoutError:
            given = f"an incomplete body after {bounds.seconds:g} s"
            return errors.refused("body_too_slow", given=given, expected=f"the whole body within {bounds.seconds:g} s")
        if is_announced_too_large or body.size_bytes > bounds.one_bytes:
            given = f"more than {bounds.one_bytes:,} bytes"
            return errors.refused("body_too_large", given=given, expected=f"at most {bounds.one_bytes:,} bytes")
        if body.held_bytes == body.size_bytes:
            return None
        return errors.problem(
            429,
            "overloaded",
            "the bodies of all open requests together are too large",
            given=f"bodies of more than {bounds.all_bytes:,} bytes together",
            expected=f"at most {bounds.all_bytes:,} bytes in the bodies of unanswered requests",
            do="wait for the time in Retry-After, then send the request again",
            headers={**errors.RETRY, "x-should-retry": "true", **errors.CLOSE},
        )

    async def _take(self, receive: Receive, body: _Body) -> None:
        while body.size_bytes <= _DRAINED_TIMES * self._bounds.one_bytes:
            message = await receive()
            if message["type"] == "http.disconnect":
                body.left = True
                return
            part: bytes = message.get("body", b"")
            body.size_bytes += len(part)
            is_room = self._held_bytes + len(part) <= self._bounds.all_bytes
            if is_room and body.size_bytes <= self._bounds.one_bytes:
                body.parts.append(part)
                body.held_bytes += len(part)
                self._held_bytes += len(part)
            if not message.get("more_body", False):
                return


def _asks_first(scope: Scope) -> int:
    """Return the declared size of a body that waits for `100 Continue`; 0 for any other request."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    declared = headers.get(b"content-length", b"0")
    return int(declared) if b"expect" in headers and declared.isdigit() else 0


def _replaying(content: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the whole body first, then the messages of `receive`."""
    replayed = False

    async def replay() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": content, "more_body": False}

    return replay
