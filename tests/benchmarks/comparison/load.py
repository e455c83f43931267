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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


@dataclass(frozen=True)
class Load:
    """Result of sending requests to a server."""

    seconds: float  # seconds from the first request to the last answer
    latencies_seconds: tuple[float, ...]  # latency of each request that was answered

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies_seconds) / self.seconds

    def milliseconds(self, percentile: float) -> float:
        """Return the latency in ms that `percentile` of 100 answered requests do not exceed."""
        return round(1000 * float(np.percentile(self.latencies_seconds, percentile)), 2)


def load(port: int, path: str, bodies: Iterable[bytes], concurrency: int) -> Load:
    """POST each body, which is JSON, to a server of this machine; connections stay open.

    Raises:
        RuntimeError: an answer is not 200.
    """
    requests = (_request(path, body) for body in bodies)
    latencies: list[float] = []

    async def clients() -> None:
        await asyncio.gather(*(_client(port, requests, latencies) for _ in range(concurrency)))

    started = time.perf_counter()
    asyncio.run(clients())
    return Load(time.perf_counter() - started, tuple(latencies))


def _request(path: str, body: bytes) -> bytes:
    """Return the bytes of a POST request with a JSON body."""
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode("ascii") + body


async def _read_reply(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read the status and the body of the next reply from a connection.

    Raises:
        EOFError: the connection closed before the reply was complete.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    body = await reader.readexactly(int(length[1])) if length else b""
    return int(head.split()[1]), body


async def _client(port: int, requests: Iterator[bytes], latencies: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        for request in requests:
            sent = time.perf_counter()
            writer.write(request)
            status, body = await _read_reply(reader)
            latencies.append(time.perf_counter() - sent)
            if status != 200:
                raise RuntimeError(f"{status}: {body[:200].decode('utf-8', 'replace')}")


# Statuses with which a server refuses a request.
_REFUSALS = (429, 503)
_PATIENCE_SECONDS = 60.0
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class OpenLoad(Load):
    """Latencies are of the requests that were answered, counted from when they were due."""

    num_refused: int
    num_failed: int  # answered with any other error, cut off, or not at all
    late_seconds: tuple[float, ...]  # delay of each request after it was due: the client's share of the latency


class _Asked(NamedTuple):
    status: int | None  # None: no answer came
    latency_seconds: float
    late_seconds: float


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
) -> OpenLoad:
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
    asked = asyncio.run(_Clients(port, patience_seconds).ask(requests, due_seconds, num_connections))
    answered = tuple(one.latency_seconds for one in asked if one.status == 200)
    if not answered:
        raise RuntimeError(f"of {len(asked)} requests none was answered: {sorted({str(one.status) for one in asked})}")
    num_refused = sum(one.status in _REFUSALS for one in asked)
    return OpenLoad(
        max(due + one.latency_seconds for due, one in zip(due_seconds, asked, strict=True)),
        answered,
        num_refused,
        len(asked) - len(answered) - num_refused,
        tuple(one.late_seconds for one in asked),
    )


@dataclass
class _Clients:
    port: int
    patience_seconds: float
    # The longest idle first: all are used in turn, and so every process of a server that has several.
    _idle: deque[_Connection] = field(default_factory=deque)

    async def ask(self, requests: Sequence[bytes], due_seconds: Sequence[float], num_connections: int) -> list[_Asked]:
        for _ in range(num_connections):
            self._idle.append(await self._opened())
        started = time.perf_counter()
        asking: list[asyncio.Task[_Asked]] = []
        for request, due in zip(requests, due_seconds, strict=True):
            await asyncio.sleep(max(0.0, started + due - time.perf_counter()))
            asking.append(asyncio.create_task(self._ask_one(request, started + due)))
        asked = await asyncio.gather(*asking)
        for _, writer in self._idle:
            writer.close()
        return asked

    async def _ask_one(self, request: bytes, due: float) -> _Asked:
        late_seconds = time.perf_counter() - due
        try:
            async with asyncio.timeout(self.patience_seconds):
                status: int | None = await self._status_of(request)
        except (OSError, EOFError):  # TimeoutError is an OSError
            status = None
        return _Asked(status, time.perf_counter() - due, late_seconds)

    async def _status_of(self, request: bytes) -> int:
        reader, writer = await self._connection()
        is_usable = False
        try:
            writer.write(request)
            status, _ = await _read_reply(reader)
            is_usable = status == 200
        finally:
            if is_usable:
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
