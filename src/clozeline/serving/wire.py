"""HTTP as it comes over the wire: uvicorn's, with bounds for heads, and no answer that is not JSON."""

import asyncio
from collections import deque
from typing import cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from clozeline.serving.edge.access import SECURITY_HEADERS
from clozeline.serving.edge.refusals import head_too_large, not_http
from clozeline.serving.errors import ApiError
from clozeline.serving.observe.told import LISTENER
from clozeline.serving.protocols.dialects import HOUSE_WORDS

MAX_HEAD_BYTES = 64 * 2**10
"""Request line and headers, beside what came with their first bytes. The parser itself would keep any number."""
HEAD_SECONDS = 20.0
"""From the connection, or from the first byte of a later head, to the end of the head."""


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
            self._refuse(head_too_large(MAX_HEAD_BYTES))
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
        self._refuse(not_http())

    def _watch_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, error: ApiError) -> None:
        answer = HOUSE_WORDS.refusal(error)
        headers = [*answer.raw_headers, *((name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items())]
        lines = [STATUS_LINE[answer.status_code], *(b"%s: %s\r\n" % header for header in headers), b"\r\n"]
        self.transport.write(b"".join(lines) + bytes(answer.body))
        self.transport.close()
