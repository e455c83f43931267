"""Open requests and their bodies are bounded in number, size, time and memory; the others are refused at once."""

import json
import re
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from clozeline.inference.tokenization import TextTokenizer, TokenizedText
from clozeline.serving import limits
from clozeline.serving.limits import MAX_OF_ONE, MAX_REQUESTS, BodyBounds, Visit
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.serving.conftest import Hosted, Server, connection, wait_until

HALF = 5_000


def begun(client: httpx.Client) -> socket.socket:
    """Return a connection that has sent half of the body that its head announces."""
    opened = connection(client)
    head = (
        f"POST /classify HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {2 * HALF}\r\n\r\n"
    )
    opened.sendall(head.encode() + b'{"inputs": "a"'.ljust(HALF))
    return opened


def rejected(client: httpx.Client, reason: str) -> bool:
    return f'clozeline_rejections_total{{reason="{reason}"}} 1.0' in client.get("/metrics").text


def test_an_incomplete_body_is_reported(hosted: Hosted) -> None:
    with hosted(bounds=BodyBounds(seconds=0.2)) as (client, _):
        with begun(client) as slow:
            answer = b"".join(iter(lambda: slow.recv(65_536), b""))
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_too_slow"
        assert rejected(client, "body_too_slow")


def test_the_memory_of_all_bodies_is_bounded_and_returned(hosted: Hosted) -> None:
    with hosted(bounds=BodyBounds(all_bytes=HALF + 100)) as (client, _):
        body = json.dumps({"inputs": "a"}).ljust(200).encode()
        headers = {"content-type": "application/json"}
        with begun(client):
            wait_until(lambda: client.post("/embed", content=body, headers=headers).status_code == 429)
            refused = client.post("/classify", content=body, headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
            assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("1", "true")
            assert client.get("/health/ready").status_code == 200
            assert client.post("/embed", json={"inputs": "a"}).status_code == 200  # this small body still fits
        wait_until(lambda: client.post("/embed", content=body, headers=headers).status_code == 200)


def test_a_body_that_is_too_large_is_counted_as_rejected(hosted: Hosted) -> None:
    with hosted(bounds=BodyBounds(one_bytes=100)) as (client, _):
        assert client.post("/embed", json={"inputs": "a" * 200}).status_code == 413
        assert rejected(client, "body_too_large")


RATE = 3_000
SECONDS = 4
SECONDS_OF_LOOP = 0.003
"""Minimum time that each request costs the event loop, on any machine."""
HEALTH = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def slow_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize = TextTokenizer.tokenize

    def slowly(self: TextTokenizer, texts: list[str], *, truncate: bool) -> list[TokenizedText]:
        time.sleep(SECONDS_OF_LOOP)
        return tokenize(self, texts, truncate=truncate)

    monkeypatch.setattr(TextTokenizer, "tokenize", slowly)


@pytest.fixture
def app(catalogue: Catalogue) -> Starlette:
    service = Service(Capacity(num_workers=1))
    service.open(catalogue)
    return create_app(service)


@pytest.fixture
def open_counts(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Set of every number of open requests that the server reached."""
    counts: set[int] = set()
    count = Visit._count

    def noting(self: Visit, is_counted: bool) -> None:
        count(self, is_counted)
        counts.add(self.of_all.num)

    monkeypatch.setattr(Visit, "_count", noting)
    return counts


@pytest.mark.usefixtures("slow_loop")
@pytest.mark.parametrize("num_connections", [8, 600], ids=["pipelined", "many connections"])
def test_a_flood_of_small_requests_gets_429_while_it_lasts_and_only_a_bounded_number_waits(
    serving: Server, app: Starlette, open_counts: set[int], num_connections: int
) -> None:
    with serving(app) as client:
        given = [client.base_url.host, client.base_url.port, num_connections, RATE, SECONDS]
        command = [sys.executable, "-m", "tests.serving.flood", *map(str, given)]
        flood = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
        told = client.get("/metrics").text
    came = json.loads(flood.stdout)
    statuses = came["statuses"]
    assert set(statuses) == {"200", "429"}
    assert came["unanswered"] == 0
    assert came["is_refused_meanwhile"]
    assert statuses["200"] > 100
    assert max(open_counts) == min(MAX_REQUESTS, num_connections * MAX_OF_ONE)
    assert f'clozeline_rejections_total{{reason="crowded"}} {statuses["429"]}.0' in told


def test_open_requests_of_one_connection_are_bounded_and_health_always_answers(serving: Server, app: Starlette) -> None:
    body = b'{"inputs":"a"}'
    head = b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = head + b"content-length: %d\r\n\r\n" % len(body) + body
    with serving(app) as client, connection(client) as to_server:
        to_server.sendall(request * (MAX_OF_ONE + 5) + HEALTH)
        said = b""
        while said.count(b'"status":"live"') < 1:
            said += to_server.recv(65_536)
        refused = client.post("/embed", json={"inputs": "a"})
    statuses = re.findall(rb"HTTP/1\.1 (\d+) ", said)
    assert statuses == [b"200"] * MAX_OF_ONE + [b"429"] * 5 + [b"200"]
    assert said.lower().count(b"retry-after: 1\r\n") == 5
    assert said.lower().count(b"x-frame-options: deny\r\n") == MAX_OF_ONE + 6
    assert refused.status_code == 200, "answered requests no longer count"


def test_slow_bodies_do_not_block_other_clients(
    serving: Server, app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_REQUESTS", 2)
    begun = b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n"
    with serving(app) as client, ExitStack() as stack:
        slow = [stack.enter_context(connection(client)) for _ in range(8)]
        for one in slow:
            one.sendall(begun)
        assert [client.get("/models").status_code for _ in range(4)] == [200] * 4
        for one in slow:
            one.sendall(b'{"inputs":"a"}')
            assert one.recv(65_536).startswith(b"HTTP/1.1 200 ")
        assert client.get("/models").status_code == 200
        wait_until(lambda: app.state.open_requests.num == 0)


def test_a_request_whose_body_arrives_in_parts_is_refused_too(
    serving: Server, app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_REQUESTS", 0)
    head = b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n"
    with serving(app) as client, connection(client) as apart:
        apart.sendall(head)
        assert client.get("/metrics").status_code == 200, "the head has been read by then"
        apart.sendall(b'{"inputs":"a"}')
        assert apart.recv(65_536).startswith(b"HTTP/1.1 429 ")


def test_a_refusal_under_a_model_name_has_the_error_format_of_the_protocol(
    serving: Server, app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_REQUESTS", 0)
    with serving(app) as client:
        refused = client.post("/models/encoder/v1/embeddings", json={"input": "a", "model": "encoder"})
        assert [client.get(f"/models/encoder{path}").status_code for path in ("/health/live", "/metrics")] == [200] * 2
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"


def test_disconnected_clients_no_longer_count_as_open_requests(
    serving: Server, app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_REQUESTS", 4)
    with serving(app) as client:
        for _ in range(8):
            with connection(client) as leaving:
                leaving.sendall(b"GET /models HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20)
        wait_until(lambda: app.state.open_requests.num == 0)
        assert client.get("/models").status_code == 200
