"""Requests over HTTP from so many clients at once, each of which sends its next one as soon as it is answered."""

import asyncio
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


@dataclass(frozen=True)
class Load:
    """What a server did with them."""

    seconds: float
    """From the first request to the last answer."""
    latencies_seconds: tuple[float, ...]
    """Of each request."""

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies_seconds) / self.seconds

    def milliseconds(self, percentile: float) -> float:
        """The latency that `percentile` of 100 requests do not exceed."""
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
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    )
    return head.encode("ascii") + b"\r\n" + body


async def _client(port: int, requests: Iterator[bytes], latencies: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for request in requests:
            sent = time.perf_counter()
            writer.write(request)
            await _answer(reader)
            latencies.append(time.perf_counter() - sent)
    finally:
        writer.close()
        await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    body = await reader.readexactly(int(length[1])) if length else b""
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{head.splitlines()[0].decode('latin-1')}: {body[:200].decode('utf-8', 'replace')}")
