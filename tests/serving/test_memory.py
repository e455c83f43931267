"""Memory stays where it is, whatever routes are asked and whatever lengths and numbers of texts come."""

import json
import random
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.serving.test_server import Serve

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n")
NUM_REQUESTS = 10_000
WARM_UP = 2_000
AT_ONCE = 16


def random_request(generator: random.Random) -> bytes:
    """Any route, any lengths, any number of texts; some that cannot be answered."""
    words = ["a", "the", "list", "of", "漢", "lists"]
    texts = [
        " ".join(generator.choices(words, k=generator.randint(1, 40))) for _ in range(generator.choice([1, 1, 1, 2, 8]))
    ]
    path, body = generator.choice(
        [
            ("/embed", {"inputs": texts}),
            ("/embed", {"inputs": texts, "truncate": True, "dimensions": generator.randint(1, 8)}),
            ("/fill-mask", {"inputs": [f"{text} [MASK]" for text in texts], "parameters": {"top_k": 20}}),
            ("/classify", {"inputs": texts}),
            ("/v1/embeddings", {"model": "encoder", "input": texts, "encoding_format": "base64"}),
            ("/tokenize", {"inputs": texts}),
            ("/invocations", {"inputs": [f"[MASK] {texts[0]}", *texts]}),
            ("/embed", {"inputs": "a " * generator.randint(80, 4_000)}),
            (f"/nothing/{generator.random()}", {}),
        ]
    )
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Pipelined:
    """One connection, several requests on their way."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._received = b""

    def statuses(self, requests: list[bytes]) -> list[int]:
        self._socket.sendall(b"".join(requests))
        return [self._status() for _ in requests]

    def close(self) -> None:
        self._socket.close()

    def _status(self) -> int:
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            self._receive()
        length = _LENGTH.search(self._received, 0, end + 4)
        assert length
        whole = end + 4 + int(length[1])
        while len(self._received) < whole:
            self._receive()
        status = int(self._received[9:12])
        self._received = self._received[whole:]
        return status

    def _receive(self) -> None:
        received = self._socket.recv(2**20)
        assert received, "the server hung up"
        self._received += received


@pytest.fixture
def serve(dist: Path) -> Iterator[Serve]:
    """Without its log: nobody reads ten thousand lines from the pipe, and it would wait until somebody does."""
    quiet = "import os\nos.dup2(os.open(os.devnull, os.O_WRONLY), 2)\n"
    server = Serve(dist.parent, "--port", "0", "--threads", "1", before=quiet)
    yield server
    server.process.kill()
    server.process.communicate()


@pytest.mark.slow
def test_memory_stays_where_it_was_after_ten_thousand_random_requests(serve: Serve) -> None:
    url = serve.url()
    resident = []
    statuses: Counter[int] = Counter()
    generator = random.Random(0)
    with closing(Pipelined(url)) as connection, httpx.Client(base_url=url, trust_env=False) as client:
        for number in range(0, NUM_REQUESTS, AT_ONCE):
            statuses.update(connection.statuses([random_request(generator) for _ in range(AT_ONCE)]))
            if number % 1_000 < AT_ONCE and number >= WARM_UP:
                found = re.search(r"^process_resident_memory_bytes (\S+)$", client.get("/metrics").text, re.MULTILINE)
                assert found
                resident.append(float(found[1]))
    serve.process.send_signal(signal.SIGTERM)
    assert serve.end()[0] == 0
    assert set(statuses) == {200, 404, 422}
    assert statuses[200] > 0.7 * NUM_REQUESTS
    assert resident[-1] < 1.2 * resident[0], f"resident MiB: {[round(size / 2**20) for size in resident]}"
    grown_bytes = resident[-1] - resident[0]
    assert grown_bytes < 4 * 2**20, f"{grown_bytes / (NUM_REQUESTS - WARM_UP):,.0f} bytes of each request are kept"
