"""Up is not ready: what the server says while it loads, while it is full, while it stops, and when it is at fault."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import httpx
import pytest
from starlette.types import ASGIApp

from clozeline.inference.encoder import Encoder
from clozeline.serving.app import create_app
from clozeline.serving.catalogue import Catalogue
from clozeline.serving.service import Service
from clozeline.serving.workers import Workers

Server = Callable[[ASGIApp], AbstractContextManager[httpx.Client]]


def code_of(answer: httpx.Response) -> str:
    code: str = answer.json()["error"]["code"]
    return code


def test_the_server_is_live_but_not_ready_until_its_models_are_loaded(serving: Server, catalogue: Catalogue) -> None:
    service = Service(Workers(num_threads=1))
    with serving(create_app(service)) as client:
        assert client.get("/health/live").status_code == 200
        for answer in (
            client.get("/health/ready"),
            client.get("/health"),
            client.get("/models"),
            client.post("/embed", json={"inputs": "a"}),
        ):
            assert (answer.status_code, code_of(answer)) == (503, "not_ready")
            assert answer.headers["retry-after"] == "1"
        service.open(catalogue)
        assert client.get("/health/ready").json() == {"status": "ready"}
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200


def test_a_server_that_stops_is_not_ready_but_still_answers(serving: Server, catalogue: Catalogue) -> None:
    service = Service(Workers(num_threads=1))
    service.open(catalogue)
    with serving(create_app(service)) as client:
        service.drain()
        assert client.get("/health/ready").status_code == 503
        assert client.get("/health/live").status_code == 200
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200


def test_health_answers_at_once_while_every_worker_is_busy_and_a_full_line_is_told(
    serving: Server, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    embed = Encoder.embed

    def held(self: Encoder, texts: list[str], *, truncate: bool = False) -> object:
        assert release.wait(timeout=30)
        return embed(self, texts, truncate=truncate)

    monkeypatch.setattr(Encoder, "embed", held)
    service = Service(Workers(num_threads=1, max_waiting=1))
    service.open(catalogue)
    with serving(create_app(service)) as client, ThreadPoolExecutor(2) as clients:
        accepted = [clients.submit(client.post, "/embed", json={"inputs": "a"}) for _ in range(2)]
        wait_until(lambda: service.workers.num_admitted == 2)
        started = time.monotonic()
        assert client.get("/health/ready").status_code == 200
        refused = client.post("/embed", json={"inputs": "a"})
        assert time.monotonic() - started < 5
        assert (refused.status_code, code_of(refused)) == (429, "overloaded")
        assert refused.headers["retry-after"] == "1"
        release.set()
        assert [answer.result().status_code for answer in accepted] == [200, 200]
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200


def test_a_fault_of_the_server_is_told_in_the_envelope_without_its_insides(
    serving: Server, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Encoder, texts: list[str], *, truncate: bool = False) -> object:
        raise RuntimeError("secret insides")

    service = Service(Workers(num_threads=1))
    service.open(catalogue)
    with serving(create_app(service)) as client:
        with monkeypatch.context() as patched:
            patched.setattr(Encoder, "embed", broken)
            answer = client.post("/embed", json={"inputs": "a"})
        assert (answer.status_code, code_of(answer)) == (500, "internal_error")
        assert answer.headers["connection"] == "close"  # uvicorn hangs up after a fault
        assert "secret" not in answer.text
        wait_until(lambda: "secret insides" in caplog.text)
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200


def test_the_log_tells_each_request_and_nothing_that_a_client_wrote(
    serving: Server, catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="clozeline.serving")
    service = Service(Workers(num_threads=1))
    service.open(catalogue)
    with serving(create_app(service)) as client:
        client.post("/embed?text=secret", json={"inputs": "secret"})
        client.post("/secret", json={"inputs": "secret"})
        client.post("/fill-mask", json={"inputs": "secret"})
        client.get("/health/ready")
    lines = [record.getMessage() for record in caplog.records if record.name == "clozeline.serving.request_log"]
    assert [line.rsplit(" ", 2)[0] for line in lines] == [
        "POST /embed 200",
        "POST (no route) 404",
        "POST /fill-mask 422",
    ]
    assert "secret" not in caplog.text


def wait_until(condition: Callable[[], bool], timeout_seconds: float = 20) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
