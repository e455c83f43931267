"""The only adapter of uvicorn: limits for request heads, JSON errors only, and a stop that loses no accepted request.

It uses undocumented parts of uvicorn; a contract test lists them.
"""

import asyncio
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from types import FrameType
from typing import cast

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from clozeline.serving import access, errors, limits, models, tracing
from clozeline.serving.asking import ARRIVED
from clozeline.serving.http.operation import HOUSE_WORDS
from clozeline.system.errors import TransientError

# Limit for request line and headers after their first chunk of bytes. The parser itself has no limit.
MAX_HEAD_BYTES = 64 * 2**10
# Longest time from the connection, or from the first byte of a later head, to the end of the head.
HEAD_SECONDS = 20.0
# Time for a client to read what the server has written to it.
READING_SECONDS = 60.0
# The slowest client that gets a large answer whole.
READING_BYTES_PER_SECOND = 2**18
# Answers of all connections that clients have not read; beyond it, the connection with the largest one is cut.
MAX_UNREAD_BYTES = 512 * 2**20
# Time after the last deadline for clients to read their answers.
WRITING_SECONDS = 10.0
# Pipelined requests of one connection that are read ahead, so that excess ones get their 429 in time.
_MOST_IN_WAIT = 1024
_LAST_LOOK_SECONDS = 0.05
# Time for the last 503s to reach their clients if a second signal hurries the stop.
_TELLING_SECONDS = 0.5


class JsonHttpProtocol(HttpToolsProtocol):
    """A connection that closes if a head is not HTTP, is too large, or does not end in time.

    A client that does not read its answer in time is cut off, and so is the one with the largest unread answer if all
    together are too much: they lie in memory. If the client leaves, every unanswered request is notified. uvicorn
    notifies only the last one, which is not the running one if the client pipelines requests.
    """

    _reads_head = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _open_requests: limits.OpenRequests  # open requests of this connection
    _unanswered: deque[RequestResponseCycle]  # requests in order of arrival; the first ones may already be answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._unanswered = deque()
        self._open_requests = limits.OpenRequests()
        super().connection_made(cast("asyncio.Transport", transport))  # the type in asyncio is too general
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch_head()
        self._unwatch_reading()
        for cycle in self._unanswered:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        while self.pipeline:
            never_begun, _ = self.pipeline.pop()
            if visit := limits.visit_of(cast("Scope", never_begun.scope)):
                visit.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        went_on = self._reads_head
        super().data_received(data)
        if not self._reads_head or self.transport.is_closing():
            self._unwatch_head()
            return
        if went_on:
            self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            given, expected = f"more than {MAX_HEAD_BYTES:,} bytes", f"at most {MAX_HEAD_BYTES:,} bytes"
            self._refuse(errors.refused("head_too_large", given=given, expected=expected))
        elif self._head_timer is None:
            self._watch_head()

    def on_message_begin(self) -> None:
        self._reads_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._reads_head = False
        super().on_headers_complete()
        scope = cast("Scope", self.scope)
        scope[tracing.LISTENER] = self.transport
        limits.expect(scope, cast("Starlette", self.config.app).state.open_requests, self._open_requests)
        while self._unanswered and self._unanswered[0].response_complete:
            self._unanswered.popleft()
        self._unanswered.append(self.cycle)
        if 0 < len(self.pipeline) < _MOST_IN_WAIT:
            # Reading continues while requests wait, so that the server notices a client that leaves or sends too many.
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        scope = cast("Scope", self.scope)
        scope[ARRIVED] = time.monotonic()
        visit = limits.visit_of(scope)
        if visit and not self.cycle.response_complete:
            visit.enter()
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        unread = {one: one.transport.get_write_buffer_size() for one in self.connections}
        if sum(unread.values()) > MAX_UNREAD_BYTES:
            self.loop.call_soon(max(unread, key=lambda one: unread[one]).transport.abort)
        wait_seconds = READING_SECONDS + unread[self] / READING_BYTES_PER_SECOND
        self._unread_timer = self.loop.call_later(wait_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._unwatch_reading()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(errors.refused("not_http", given="bytes that are not HTTP", expected="HTTP/1.1, without TLS"))

    def _watch_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _unwatch_reading(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _refuse(self, error: errors.ApiError) -> None:
        answer = HOUSE_WORDS.refusal(error)
        headers = [
            *answer.raw_headers,
            *((name.encode(), value.encode()) for name, value in access.SECURITY_HEADERS.items()),
        ]
        status = HTTPStatus(answer.status_code)
        status_line = f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
        lines = [status_line, *(b"%s: %s\r\n" % header for header in headers), b"\r\n"]
        self.transport.write(b"".join(lines) + bytes(answer.body))
        self.transport.close()


def configured(app: ASGIApp) -> uvicorn.Config:
    """Return the configuration with which uvicorn serves `app`."""
    return uvicorn.Config(
        app,
        http=JsonHttpProtocol,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
    )


class ModelServer(uvicorn.Server):
    """Loads the models once it listens, and reports not ready as soon as it is told to stop."""

    def __init__(self, config: uvicorn.Config, service: models.Service, load: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._load = load
        self._loading: asyncio.Task[None] | None = None
        self._worker_fault: str | None = None
        self.is_hurried = False  # a further Ctrl+C came during the stop: accepted requests are not awaited

    def serve_until_told_to_stop(self, listener: socket.socket) -> None:
        """Serve until told to stop, then raise SystemExit. Raises errors of loading or of a worker."""
        with _exit_when_told_to_stop(self):
            self.run(sockets=[listener])
        self._raise_failure()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loading = asyncio.create_task(asyncio.to_thread(self._load))
        self._loading.add_done_callback(self._stop_if_failed)

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._fault() is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Connections that the kernel has accepted are taken over before the listener closes.
        await asyncio.sleep(_LAST_LOOK_SECONDS)
        ending = asyncio.create_task(self._close_slow_connections())
        await super().shutdown(sockets)
        ending.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.drain()
        if sig == signal.SIGINT and self.should_exit and not self.is_hurried:
            self.is_hurried = True
        else:
            super().handle_exit(sig, frame)

    def _raise_failure(self) -> None:
        """Raise the error that ended the loading of the models, or a worker, if any."""
        if self._loading and self._loading.done() and not self._loading.cancelled():
            self._loading.result()
        if self._worker_fault:
            raise TransientError(
                f"a worker thread failed: {self._worker_fault}",
                do="start the server again; see the log above for the cause",
            )

    async def _close_slow_connections(self) -> None:
        """Close the connections whose body or answer takes too long; all of them if the stop is hurried.

        Every accepted request is answered by its deadline, so the last deadline bounds the wait. A request whose
        body is on its way has no deadline yet: bodies get MAX_BODY_SECONDS.
        """
        asking = self._service.asking
        bodies_seconds = time.monotonic() + limits.MAX_BODY_SECONDS
        while not self.is_hurried and time.monotonic() < WRITING_SECONDS + max(
            bodies_seconds, asking.last_deadline_seconds
        ):
            await asyncio.sleep(_LAST_LOOK_SECONDS)
        if self.is_hurried:
            asking.stop()
            await asyncio.sleep(_TELLING_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def _fault(self) -> str | None:
        """Return what is wrong with the workers, if anything. The server then ends, for a supervisor to restart it."""
        self._worker_fault = self._worker_fault or self._service.fault()
        return self._worker_fault

    def _stop_if_failed(self, loading: asyncio.Task[None]) -> None:
        if not loading.cancelled() and loading.exception():
            self.should_exit = True


@contextmanager
def _exit_when_told_to_stop(server: ModelServer) -> Iterator[None]:
    """Exit with 0 when told to stop. uvicorn raises the signal again after its shutdown, and these handlers get it."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + signal.SIGINT if server.is_hurried else 0)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
