"""Open loop: sends HTTP requests at times drawn beforehand, without waiting for answers.

Latency counts from the moment at which a request was due, not from when it could be sent: a closed loop asks a server
that stalls less often, and leaves out of its percentiles the requests that would have waited (coordinated omission).
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from comparison.load import Load, read_reply, request_of

_REFUSALS = (429, 503)
"""Statuses with which a server refuses a request."""
_PATIENCE_SECONDS = 60.0
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class OpenLoad(Load):
    """Latencies are of the requests that were answered, counted from when they were due."""

    num_refused: int
    num_failed: int
    """Answered with any other error, cut off, or not at all."""
    late_seconds: tuple[float, ...]
    """Delay of each request after it was due: the client's share of the latency."""


@dataclass(frozen=True)
class _Asked:
    status: int | None
    """None: no answer came."""
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
    requests = [request_of(path, body) for body in bodies]
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
    _idle: deque[_Connection] = field(default_factory=deque)
    """The longest idle first: all are used in turn, and so every process of a server that has several."""

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
        await asyncio.gather(*(writer.wait_closed() for _, writer in self._idle), return_exceptions=True)
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
            status = (await read_reply(reader)).status
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
