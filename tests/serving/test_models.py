"""Live is not ready: answers of the server while it loads, while it is full, while it stops, and after a fault."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import Mock

import httpx
import numpy as np
import pytest

from clozeline.inference.language import OpenEncoder
from clozeline.inference.open_model import Rows
from clozeline.inference.tokenization import TokenizedText
from clozeline.serving.access import SECURITY_HEADERS
from clozeline.serving.admission import Admission
from clozeline.serving.loading import ServedModel
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.queue import Plan, VersionTurns
from tests.make.apps import running
from tests.serving.conftest import Hosted, busy, connection, posted, wait_until

EMBED = posted("/embed", {"inputs": "a"})


def fault_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_the_server_is_live_but_not_ready_until_its_models_are_loaded(catalogue: Catalogue) -> None:
    service = Service(Capacity(num_workers=1))
    with running(service) as client:
        assert client.get("/health/live").status_code == 200
        asked = [client.get(path) for path in ("/health/ready", "/health", "/models")]
        for answer in (*asked, client.post("/classify", json={"inputs": "a"})):
            assert fault_of(answer) == (503, "not_ready")
            assert answer.headers["retry-after"] == "1"
        service.open(catalogue)
        assert client.get("/health/ready").json() == {"status": "ready"}
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200


def test_a_stopping_server_answers_accepted_requests_and_refuses_new_ones(
    hosted: Hosted, held: threading.Event
) -> None:
    with hosted() as (client, service), ThreadPoolExecutor(1) as clients:
        accepted = busy(client, service, clients)
        service.drain()
        assert [client.get(f"/health/{path}").status_code for path in ("ready", "live")] == [503, 200]
        refused = client.post("/classify", json={"inputs": "a"})
        assert fault_of(refused) == (503, "not_ready")
        assert refused.headers["connection"] == "close"
        held.set()
        assert accepted.result().status_code == 200


def test_health_answers_at_once_while_every_worker_is_busy_and_a_full_queue_gets_429(
    hosted: Hosted, held: threading.Event
) -> None:
    with hosted(admission=Admission(max_waiting_tokens=5)) as (client, service), ThreadPoolExecutor(2) as clients:
        running = busy(client, service, clients)
        waiting = clients.submit(client.post, "/embed", json={"inputs": "a"})
        wait_until(lambda: service.scheduler.waiting_tokens == 3)
        assert client.get("/health/ready").status_code == 200
        refused = client.post("/classify", json={"inputs": ["a", "b"]})
        assert not running.done()
        assert fault_of(refused) == (429, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["x-should-retry"] == "true"
        assert 'clozeline_rejections_total{reason="queue_full"} 1.0' in client.get("/metrics").text
        held.set()
        assert [answer.result().status_code for answer in (running, waiting)] == [200, 200]


@pytest.mark.parametrize("pauses_seconds", [[], [0], [0.05]], ids=["alone", "two at once", "one after the other"])
def test_work_for_a_disconnected_client_is_dropped_even_after_a_pipelined_request(
    hosted: Hosted, held: threading.Event, caplog: pytest.LogCaptureFixture, pauses_seconds: list[float]
) -> None:
    with hosted() as (client, service), ThreadPoolExecutor(1) as clients:
        running = busy(client, service, clients)
        with connection(client) as leaving:
            leaving.sendall(EMBED)
            for seconds in pauses_seconds:
                time.sleep(seconds)
                leaving.sendall(EMBED)
            wait_until(lambda: service.scheduler.waiting_tokens == 3)
            time.sleep(0.06)
        wait_until(lambda: service.scheduler.waiting_tokens == 0)
        held.set()
        assert running.result().status_code == 200
        counts = client.get("/metrics").text
    assert 'clozeline_rejections_total{reason="dropped"} 1.0' in counts
    assert 'clozeline_requests_total{route="/embed",status="499"} 1.0' in counts
    assert 'clozeline_requests_total{route="/embed",status="200"} 1.0' in counts
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_graph_fault_fails_only_its_own_requests(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted and logged with its error, its answer has the usual headers, and the connection stays usable."""
    caplog.set_level("INFO", logger="clozeline.serving")
    with hosted() as (client, _):
        with monkeypatch.context() as patched:
            patched.setattr(OpenEncoder, "rows", Mock(side_effect=RuntimeError("secret insides")))
            answer = client.post("/fill-mask?text=client-text", json={"inputs": "client-text [MASK]"})
        assert fault_of(answer) == (500, "internal_error")
        assert {name: answer.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert "secret" not in answer.text
        assert "connection" not in answer.headers  # a server that hangs up would send `connection: close`
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200
        assert client.get("/health/live").status_code == 200
        assert 'clozeline_requests_total{route="/fill-mask",status="500"} 1.0' in client.get("/metrics").text
        client.post("/fill-mask", json={"inputs": "client-text"})
        client.post("/client-text", json={"inputs": "client-text"})
    lines = [record.getMessage() for record in caplog.records if record.name == "clozeline.serving.server"]
    told = [line.rsplit(" ", 2)[0] for line in lines if line.startswith("POST")]
    assert told == ["POST /fill-mask 500", "POST /embed 200", "POST /fill-mask 422", "POST (no route) 404"]
    assert "client-text" not in caplog.text
    (fault,) = (record.exc_info[1] for record in caplog.records if record.exc_info)
    assert str(fault) == "secret insides"


def test_nan_fails_only_the_request_of_its_text(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = OpenEncoder.rows

    def not_a_number(self: OpenEncoder, texts: Sequence[TokenizedText], output: str) -> list[Rows]:
        found = rows(self, texts, output)
        return [row * np.nan if len(text) == 5 else row for text, row in zip(texts, found, strict=True)]

    monkeypatch.setattr(OpenEncoder, "rows", not_a_number)
    with hosted() as (client, _):
        assert client.post("/embed", json={"inputs": ["a", "a b c"]}).status_code == 500
        assert client.post("/embed", json={"inputs": ["a", "a b"]}).status_code == 200


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the thread has to end
def test_health_reports_an_ended_worker_and_its_request_fails(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(num_workers=2) as (client, service):
        with monkeypatch.context() as patched:
            patched.setattr(OpenEncoder, "rows", Mock(side_effect=SystemExit("a worker ends")))
            assert client.post("/embed", json={"inputs": "a"}).status_code == 500
        wait_until(lambda: service.fault() is not None)
        for path in ("/health/live", "/health/ready"):
            assert fault_of(client.get(path)) == (503, "worker_fault")
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200  # the other worker still answers


@pytest.fixture
def service(catalogue: Catalogue) -> Iterator[Service]:
    """Version 1 answers, version 2 is loaded beside it, version 3 is coming."""
    served = catalogue.named("encoder")
    first, second = (ServedModel(replace(served.identity, version=version), served.model) for version in "12")
    service = Service(Capacity(num_workers=1, cache_bytes=100_000))
    alone = Catalogue([first])
    alone.keep_beside("encoder", [second], coming=["3"])
    service.open(alone)
    yield service
    service.close()


def ask(client: httpx.Client, version: str | None) -> httpx.Response:
    headers = {} if version is None else {"x-model-version": version}
    return client.post("/embed", json={"inputs": "the list"}, headers=headers)


def test_a_named_version_answers_or_the_request_is_refused(service: Service) -> None:
    with running(service) as client:
        for _ in range(2):  # the second time from the cache
            answers = [ask(client, version) for version in (None, "1", "2")]
            assert [answer.headers["x-model-version"] for answer in answers] == ["1", "1", "2"]
        coming, gone = ask(client, "3"), ask(client, "9")
    assert (coming.status_code, coming.headers["retry-after"]) == (503, "1")
    assert (gone.status_code, "one of: 1, 2" in gone.text) == (409, True)


def test_only_requests_that_name_a_version_are_answered_by_a_replica_that_lacks_the_version_of_its_fleet(
    service: Service,
) -> None:
    served = service.catalogue.named("encoder")
    with running(service) as client:
        service.schedule.set("encoder", Plan(VersionTurns("3"), {}))
        assert [ask(client, version).status_code for version in (None, "1", "2")] == [503, 200, 200]
        assert ask(client, None).headers["retry-after"] == "1"
        assert [client.get(f"/health/{path}").status_code for path in ("ready", "live")] == [503, 200]
        service.schedule.set("encoder", Plan.only(served))
        assert client.get("/health/ready").status_code == 200
        assert ask(client, None).status_code == 200


def test_the_cache_keeps_the_answers_that_were_used_last_and_none_that_is_too_large(hosted: Hosted) -> None:
    with hosted(cache_bytes=1_200) as (client, _):  # room for two

        def is_cached(*ids: int) -> bool:
            return "x-cache" in client.post("/decode", json={"ids": ids}).raise_for_status().headers

        assert [is_cached(number) for number in (5, 6, 5, 7)] == [False, False, True, False]
        assert [is_cached(number) for number in (5, 7, 6)] == [True, True, False]
        assert [is_cached(*[5] * 400) for _ in range(2)] == [False, False]
