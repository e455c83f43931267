"""The one adapter of uvicorn: HTTP with bounds for heads and no answer that is not JSON, and an end that loses nothing.

It overrides and reads what uvicorn documents nowhere; a contract test says what.
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
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from clozeline.errors import TransientError
from clozeline.serving.edge.access import SECURITY_HEADERS
from clozeline.serving.edge.body_limit import MAX_BODY_SECONDS
from clozeline.serving.errors import ApiError, problem
from clozeline.serving.models.service import Service
from clozeline.serving.observe.tracing import LISTENER
from clozeline.serving.protocols.dialects import HOUSE_WORDS

MAX_HEAD_BYTES = 64 * 2**10
"""Request line and headers, beside what came with their first bytes. The parser itself would keep any number."""
HEAD_SECONDS = 20.0
"""From the connection, or from the first byte of a later head, to the end of the head."""
WRITING_SECONDS = 10.0
"""After the last deadline, for a client to take its answer."""
_LAST_LOOK_SECONDS = 0.05
_TELLING_SECONDS = 0.5
"""For the word that nothing is waited for any more to reach its clients."""


class JsonHttpProtocol(HttpToolsProtocol):
    """A connection that ends when a head is no HTTP, is too large, or does not come to its end.

    Of a client that leaves, every request hears that is not answered. uvicorn tells the last one alone, and the one
    that runs is another where a client sent the next before it had its answer.
    """

    _reads_head = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _unanswered: deque[RequestResponseCycle]
    """In the order in which they came and are answered, which may begin with some that are by now."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._unanswered = deque()
        super().connection_made(cast("asyncio.Transport", transport))  # asyncio says less than uvicorn knows
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch_head()
        for cycle in self._unanswered:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
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
            self._refuse(_head_too_large(MAX_HEAD_BYTES))
        elif self._head_timer is None:
            self._watch_head()

    def on_message_begin(self) -> None:
        self._reads_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._reads_head = False
        super().on_headers_complete()
        cast("Scope", self.scope)[LISTENER] = self.transport
        while self._unanswered and self._unanswered[0].response_complete:
            self._unanswered.popleft()
        self._unanswered.append(self.cycle)
        if len(self.pipeline) == 1:
            # With one request in wait it is still read on: else nobody would hear that the client leaves.
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        self._refuse(_not_http())

    def _watch_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, error: ApiError) -> None:
        answer = HOUSE_WORDS.refusal(error)
        headers = [*answer.raw_headers, *((name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items())]
        status = HTTPStatus(answer.status_code)
        status_line = f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
        lines = [status_line, *(b"%s: %s\r\n" % header for header in headers), b"\r\n"]
        self.transport.write(b"".join(lines) + bytes(answer.body))
        self.transport.close()


def configured(app: ASGIApp) -> uvicorn.Config:
    """How uvicorn is to serve `app`."""
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
    """Loads the models after it has begun to listen, and says not ready as soon as it is told to stop."""

    def __init__(self, config: uvicorn.Config, service: Service, load: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._load = load
        self._loading: asyncio.Task[None] | None = None
        self._worker_fault: str | None = None
        self.is_hurried = False
        """Told to stop a second time: what was accepted is not waited for."""

    def serve_until_told_to_stop(self, listener: socket.socket) -> None:
        """Raises as `Service` and the loading of the models do; or SystemExit, once it was told to stop."""
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
        # Who has been let in by the system is let in here before the door is closed.
        await asyncio.sleep(_LAST_LOOK_SECONDS)
        ending = asyncio.create_task(self._end_what_does_not_end())
        await super().shutdown(sockets)
        ending.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.drain()
        if sig == signal.SIGINT and self.should_exit and not self.is_hurried:
            self.is_hurried = True
        else:
            super().handle_exit(sig, frame)

    def _raise_failure(self) -> None:
        """Raise what ended the loading of the models, or a worker, if anything did."""
        if self._loading and self._loading.done() and not self._loading.cancelled():
            self._loading.result()
        if self._worker_fault:
            raise TransientError(
                "a thread that runs models is not well",
                given=self._worker_fault,
                expected="threads that answer",
                do="start the server again; the traceback is above",
            )

    async def _end_what_does_not_end(self) -> None:
        """Hang up where a body, or a client that takes its answer, does not come to an end; or where it is to be now.

        Each request that was accepted has a deadline, and is answered by then: that is how long they are waited for. Of
        those whose body is on its way the deadline comes with the body.
        """
        asking = self._service.asking
        bodies_seconds = time.monotonic() + MAX_BODY_SECONDS
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
        """What is wrong with the workers; a server that cannot answer ends, so that it is started again."""
        self._worker_fault = self._worker_fault or self._service.fault()
        return self._worker_fault

    def _stop_if_failed(self, loading: asyncio.Task[None]) -> None:
        if not loading.cancelled() and loading.exception():
            self.should_exit = True


@contextmanager
def _exit_when_told_to_stop(server: ModelServer) -> Iterator[None]:
    """To be stopped is no failure: uvicorn raises the signal again once it has shut down, and this is who hears it."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + signal.SIGINT if server.is_hurried else 0)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _not_http() -> ApiError:
    return problem(
        400,
        "not_http",
        "what came over the connection is no HTTP request",
        given="bytes that do not begin as one",
        expected="HTTP/1.1, without TLS",
        do="correct the client; a proxy in front of the server speaks TLS",
        headers={"connection": "close"},
    )


def _head_too_large(max_bytes: int) -> ApiError:
    return problem(
        431,
        "head_too_large",
        "the request line and headers are too large",
        given=f"more than {max_bytes:,} bytes",
        expected=f"at most {max_bytes:,} bytes",
        do="send fewer or shorter headers, and the texts in the body",
        headers={"connection": "close"},
    )
