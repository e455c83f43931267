"""`python -m tests.serving.flood HOST PORT CONNECTIONS RATE SECONDS`: more requests a second than a server can answer.

Requests are sent at fixed moments, whatever the server answers: a client that waits for answers could not flood it.
The flood lasts SECONDS or until the first refusal, whichever is later: how soon that is depends on the machine.
Prints as JSON the number of answers with each status, and whether one was a refusal while the flood went on.
"""

import asyncio
import json
import sys
import time
from collections import Counter

BODY = b'{"inputs":"a b c"}'
HEAD = b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(
    BODY
)
_LONGEST_SECONDS = 30.0
"""Maximum length of a flood that nothing refuses."""
_LAST_SECONDS = 120.0
"""Longest wait for answers after the last request: on a busy machine even refusals take a while."""


class Flood(asyncio.Protocol):
    """One connection, whose answers come in the order of its requests."""

    def __init__(self, statuses: Counter[int]) -> None:
        self._statuses = statuses
        self.num_unanswered = 0
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self) -> None:
        self.num_unanswered += 1
        self._transport.write(HEAD + BODY)

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            head = self._read[:end].lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            if len(self._read) < end + 4 + length:
                return
            self._read = self._read[end + 4 + length :]
            self._note(int(head[9:12]))

    def _note(self, status: int) -> None:
        self.num_unanswered -= 1
        self._statuses[status] += 1


async def flood(host: str, port: int, num_connections: int, rate: float, seconds: float) -> dict[str, object]:
    statuses: Counter[int] = Counter()
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(lambda: Flood(statuses), host, port) for _ in range(num_connections)]
    connections = [protocol for _, protocol in made]
    began_seconds = time.monotonic()
    num_sent = 0
    while (passed_seconds := time.monotonic() - began_seconds) < (seconds if 429 in statuses else _LONGEST_SECONDS):
        for _ in range(int(rate * passed_seconds) - num_sent):
            connections[num_sent % num_connections].send()
            num_sent += 1
        await asyncio.sleep(0.005)
    is_refused_meanwhile = 429 in statuses
    until_seconds = time.monotonic() + _LAST_SECONDS
    while sum(one.num_unanswered for one in connections) and time.monotonic() < until_seconds:
        await asyncio.sleep(0.05)
    return {
        "is_refused_meanwhile": is_refused_meanwhile,
        "unanswered": sum(one.num_unanswered for one in connections),
        "statuses": statuses,
    }


if __name__ == "__main__":
    host, *numbers = sys.argv[1:]
    port, num_connections, rate, seconds = map(float, numbers)
    sys.stdout.write(json.dumps(asyncio.run(flood(host, int(port), int(num_connections), rate, seconds))))
