"""Open requests and their bodies are bounded in number, size, time and memory; the others are refused at once."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from clozeline.serving import limits
from clozeline.serving.limits import MAX_OF_ONE, BodyBounds
from clozeline.serving.models import Catalogue
from clozeline.serving.server import create_app
from tests.make.apps import service_of
from tests.serving.conftest import Hosted, busy, connection, run_app, wait_until

HALF = 5_000
HEAD = b"POST /classify HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
BODY = b'{"inputs": "a"}'
# Half of the body that its head announces.
BEGUN = HEAD % (2 * HALF) + BODY[:-1].ljust(HALF)
HEALTH = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"


def test_an_incomplete_body_is_reported(hosted: Hosted) -> None:
    with hosted(bounds=BodyBounds(seconds=0.2, one_bytes=HALF)) as (client, _):
        with connection(client) as slow:
            slow.sendall(HEAD % HALF + BODY)
            answer = b"".join(iter(lambda: slow.recv(65_536), b""))
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_too_slow"
        assert client.post("/embed", json={"inputs": "a" * HALF}).status_code == 413
        counts = client.get("/metrics").text
    for reason in ("body_too_slow", "body_too_large"):
        assert f'clozeline_rejections_total{{reason="{reason}"}} 1.0' in counts


def test_the_memory_of_all_bodies_is_bounded_and_returned(hosted: Hosted) -> None:
    with hosted(bounds=BodyBounds(all_bytes=HALF + 100)) as (client, _):

        def ask(num_bytes: int, path: str = "/embed") -> httpx.Response:
            return client.post(path, content=BODY.ljust(num_bytes), headers={"content-type": "application/json"})

        with connection(client) as begun:
            begun.sendall(BEGUN)
            wait_until(lambda: ask(200).status_code == 429)
            refused = ask(200, "/classify")
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
            assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("1", "true")
            assert client.get("/health/ready").status_code == 200
            assert ask(20).status_code == 200  # this small body still fits
        wait_until(lambda: ask(200).status_code == 200)


def test_open_requests_of_one_connection_are_bounded_and_health_always_answers(hosted: Hosted) -> None:
    with hosted() as (client, _), connection(client) as to_server:
        to_server.sendall((HEAD % len(BODY) + BODY) * (MAX_OF_ONE + 5) + HEALTH)
        said = b""
        while said.count(b'"status":"live"') < 1:
            said += to_server.recv(65_536)
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200, "answered requests no longer count"
        assert 'clozeline_rejections_total{reason="crowded"} 5.0' in client.get("/metrics").text
    statuses = re.findall(rb"HTTP/1\.1 (\d+) ", said)
    assert statuses == [b"200"] * MAX_OF_ONE + [b"429"] * 5 + [b"200"]
    assert said.lower().count(b"retry-after: 1\r\n") == 5
    assert said.lower().count(b"x-frame-options: deny\r\n") == MAX_OF_ONE + 6


def test_slow_bodies_do_not_block_other_clients_and_those_that_leave_no_longer_count(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_REQUESTS", 2)
    app = create_app(service_of(catalogue))
    with run_app(app) as client, ExitStack() as stack:
        slow = [stack.enter_context(connection(client)) for _ in range(8)]
        for one in slow:
            one.sendall(HEAD % len(BODY))
        assert [client.get("/models").status_code for _ in range(4)] == [200] * 4
        for one in slow:
            one.sendall(BODY)
            assert one.recv(65_536).startswith(b"HTTP/1.1 200 ")
        for _ in range(8):
            with connection(client) as leaving:
                leaving.sendall(b"GET /models HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20)
        wait_until(lambda: app.state.open_requests.num == 0)
        wait_until(lambda: client.get("/models").status_code == 200)  # the last of theirs may still arrive


def test_a_refusal_comes_for_a_body_in_parts_too_and_in_the_error_format_of_the_protocol(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_REQUESTS", 0)
    with hosted() as (client, _), connection(client) as apart:
        apart.sendall(HEAD % len(BODY))
        assert client.get("/metrics").status_code == 200, "the head has been read by then"
        apart.sendall(BODY)
        assert apart.recv(65_536).startswith(b"HTTP/1.1 429 ")
        refused = client.post("/models/encoder/v1/embeddings", json={"input": "a", "model": "encoder"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert [client.get(f"/models/encoder{path}").status_code for path in ("/health/live", "/metrics")] == [200] * 2


def test_open_requests_of_all_connections_are_bounded(
    hosted: Hosted, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_REQUESTS", 2)
    with hosted() as (client, service), ThreadPoolExecutor(2) as clients:
        running = busy(client, service, clients)
        waiting = clients.submit(client.post, "/embed", json={"inputs": "a"})
        wait_until(lambda: service.scheduler.waiting_tokens == 3)
        assert client.post("/embed", json={"inputs": "a"}).status_code == 429
        assert 'clozeline_rejections_total{reason="crowded"} 1.0' in client.get("/metrics").text
        held.set()
        assert [answer.result().status_code for answer in (running, waiting)] == [200, 200]
