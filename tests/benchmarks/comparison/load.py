"""Sends HTTP requests from several clients at once; each client sends its next request as soon as it has its answer.

This is a closed loop: a server that stalls gets fewer requests. open_load.py sends requests at fixed moments.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


@dataclass(frozen=True)
class Load:
    """Result of sending requests to a server."""

    seconds: float
    """Seconds from the first request to the last answer."""
    latencies_seconds: tuple[float, ...]
    """Latency of each request that was answered."""

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies_seconds) / self.seconds

    def milliseconds(self, percentile: float) -> float:
        """Return the latency in ms that `percentile` of 100 answered requests do not exceed."""
        return round(1000 * float(np.percentile(self.latencies_seconds, percentile)), 2)


@dataclass(frozen=True)
class Reply:
    """A server's reply to one request."""

    status: int
    first_line: str
    body: bytes


def load(port: int, path: str, bodies: Iterable[bytes], concurrency: int) -> Load:
    """POST each body, which is JSON, to a server of this machine; connections stay open.

    Raises:
        RuntimeError: an answer is not 200.
    """
    requests = (request_of(path, body) for body in bodies)
    latencies: list[float] = []

    async def clients() -> None:
        await asyncio.gather(*(_client(port, requests, latencies) for _ in range(concurrency)))

    started = time.perf_counter()
    asyncio.run(clients())
    return Load(time.perf_counter() - started, tuple(latencies))


def request_of(path: str, body: bytes) -> bytes:
    """Return the bytes of a POST request with a JSON body."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    )
    return head.encode("ascii") + b"\r\n" + body


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """Read the next reply from a connection.

    Raises:
        EOFError: the connection closed before the reply was complete.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    body = await reader.readexactly(int(length[1])) if length else b""
    first_line = head.splitlines()[0].decode("latin-1")
    return Reply(int(first_line.split()[1]), first_line, body)


async def _client(port: int, requests: Iterator[bytes], latencies: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for request in requests:
            sent = time.perf_counter()
            writer.write(request)
            reply = await read_reply(reader)
            latencies.append(time.perf_counter() - sent)
            if reply.status != 200:
                raise RuntimeError(f"{reply.first_line}: {reply.body[:200].decode('utf-8', 'replace')}")
    finally:
        writer.close()
        await writer.wait_closed()
