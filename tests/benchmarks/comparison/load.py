"""Sends HTTP requests from several clients at once.

In a closed loop each client sends its next request as soon as it has its answer: a server that stalls gets fewer
requests. In an open loop requests are sent at times drawn beforehand, without waiting for answers. Latency then counts
from the moment at which a request was due, not from when it could be sent: a closed loop leaves out of its percentiles
the requests that would have waited (coordinated omission).
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
# Statuses with which a server refuses a request.
_REFUSALS = (429, 503)
_PATIENCE_SECONDS = 60.0
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Load:
    """Result of sending requests to a server."""

    seconds: float  # seconds from the first request to the last answer
    latencies_seconds: tuple[float, ...]  # latency of each request that was answered, counted from when it was due
    num_refused: int = 0
    num_failed: int = 0  # answered with any other error, cut off, or not at all
    late_seconds: tuple[float, ...] = ()  # delay of each request after it was due: the client's share of the latency

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies_seconds) / self.seconds

    def milliseconds(self, percentile: float) -> float:
        """Return the latency in ms that `percentile` of 100 answered requests do not exceed."""
        return round(1000 * float(np.percentile(self.latencies_seconds, percentile)), 2)


class _Asked(NamedTuple):
    status: int | None  # None: no answer came
    latency_seconds: float
    late_seconds: float


def load(port: int, path: str, bodies: Sequence[bytes], concurrency: int) -> Load:
    """POST each body, which is JSON, to a server of this machine from so many clients; connections stay open.

    Raises:
        RuntimeError: an answer is not 200.
    """
    asked, seconds = asyncio.run(_Clients(port).closed([_request(path, body) for body in bodies], concurrency))
    if statuses := {str(one.status) for one in asked if one.status != 200}:
        raise RuntimeError(f"of {len(asked)} requests some were not answered: {sorted(statuses)}")
    return Load(seconds, tuple(one.latency_seconds for one in asked))


def arrivals(per_second: float, count: int, seed: int) -> tuple[float, ...]:
    """Return when each of `count` requests is due, in seconds from the start: a Poisson process, as if from many
    independent clients.

    The same seed with another rate gives the same pattern, stretched.
    """
    gaps = np.random.default_rng(seed).standard_exponential(count)
    return tuple((np.cumsum(gaps) / per_second).tolist())


def open_load(
    port: int,
    path: str,
    bodies: Sequence[bytes],
    due_seconds: Sequence[float],
    *,
    num_connections: int,
    patience_seconds: float = _PATIENCE_SECONDS,
) -> Load:
    """POST each body, which is JSON, to a server of this machine when it is due.

    Args:
        port: port of the server.
        path: path of the requests.
        bodies: bodies of the requests.
        due_seconds: when each request is due, in seconds from the start; ascending.
        num_connections: connections open from the start; if all of them wait for an answer, another is opened.
        patience_seconds: longest wait for an answer.

    Raises:
        RuntimeError: no request was answered with 200.
    """
    requests = [_request(path, body) for body in bodies]
    asked = asyncio.run(_Clients(port, patience_seconds).open(requests, due_seconds, num_connections))
    answered = tuple(one.latency_seconds for one in asked if one.status == 200)
    if not answered:
        raise RuntimeError(f"of {len(asked)} requests none was answered: {sorted({str(one.status) for one in asked})}")
    seconds = max(due + one.latency_seconds for due, one in zip(due_seconds, asked, strict=True))
    num_refused = sum(one.status in _REFUSALS for one in asked)
    num_failed = len(asked) - len(answered) - num_refused
    return Load(seconds, answered, num_refused, num_failed, tuple(one.late_seconds for one in asked))


def _request(path: str, body: bytes) -> bytes:
    """Return the bytes of a POST request with a JSON body."""
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode("ascii") + body


@dataclass
class _Clients:
    port: int
    patience_seconds: float = _PATIENCE_SECONDS
    # The longest idle first: all are used in turn, and so every process of a server that has several.
    _idle: deque[_Connection] = field(default_factory=deque)

    async def closed(self, requests: Sequence[bytes], num_clients: int) -> tuple[list[_Asked], float]:
        """Return the answers, and the seconds from the first request to the last answer."""
        asked: list[_Asked] = []
        waiting = iter(requests)

        async def client() -> None:
            for request in waiting:
                asked.append(await self._ask_one(request, time.perf_counter()))

        await self._connect(num_clients)
        started = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(num_clients)))
        seconds = time.perf_counter() - started
        self._close()
        return asked, seconds

    async def open(self, requests: Sequence[bytes], due_seconds: Sequence[float], num_connections: int) -> list[_Asked]:
        await self._connect(num_connections)
        started = time.perf_counter()
        asking: list[asyncio.Task[_Asked]] = []
        for request, due in zip(requests, due_seconds, strict=True):
            await asyncio.sleep(max(0.0, started + due - time.perf_counter()))
            asking.append(asyncio.create_task(self._ask_one(request, started + due)))
        asked = await asyncio.gather(*asking)
        self._close()
        return asked

    async def _ask_one(self, request: bytes, due: float) -> _Asked:
        late_seconds = time.perf_counter() - due
        try:
            async with asyncio.timeout(self.patience_seconds):
                status: int | None = await self._status_of(request)
        except (OSError, EOFError):  # TimeoutError is an OSError; EOFError: the connection closed within a reply
            status = None
        return _Asked(status, time.perf_counter() - due, late_seconds)

    async def _status_of(self, request: bytes) -> int:
        reader, writer = await self._connection()
        status = 0
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            await reader.readexactly(int(length[1]) if length else 0)
            status = int(head.split()[1])
        finally:
            if status == 200:
                self._idle.append((reader, writer))
            else:
                writer.close()
        return status

    async def _connection(self) -> _Connection:
        while self._idle:
            reader, writer = self._idle.popleft()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return await self._opened()

    async def _opened(self) -> _Connection:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def _connect(self, num_connections: int) -> None:
        for _ in range(num_connections):
            self._idle.append(await self._opened())

    def _close(self) -> None:
        while self._idle:
            self._idle.popleft()[1].close()
