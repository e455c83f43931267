"""A fault of the server gets an answer like any other: counted, logged, and with the security headers."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import httpx
import pytest
from starlette.types import ASGIApp
from tokenizers import Tokenizer, models

from clozeline.inference.language import OpenEncoder
from clozeline.inference.tokenization import TextTokenizer
from clozeline.serving.access import SECURITY_HEADERS
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app

Server = Callable[[ASGIApp], AbstractContextManager[httpx.Client]]


@pytest.fixture
def broken(serving: Server, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A server whose encoder always fails."""

    def fail(*given: object) -> object:
        raise RuntimeError("insides of the graph")

    monkeypatch.setattr(OpenEncoder, "rows", fail)
    service = Service(Capacity(num_workers=1))
    service.open(catalogue)
    with serving(create_app(service)) as client:
        yield client


def test_an_internal_fault_is_counted_and_logged_with_its_error(
    broken: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="clozeline.serving")
    assert broken.post("/embed", json={"inputs": "a"}).status_code == 500
    assert 'clozeline_requests_total{route="/embed",status="500"} 1.0' in broken.get("/metrics").text
    assert "POST /embed 500" in caplog.text
    (fault,) = (record for record in caplog.records if record.exc_info)
    assert fault.exc_info
    assert str(fault.exc_info[1]) == "insides of the graph"


def test_a_refusal_has_the_error_format_of_the_protocol_and_the_usual_headers(broken: httpx.Client) -> None:
    answer = broken.post("/v2/models/encoder/infer", json=INFER)
    assert (answer.status_code, set(answer.json())) == (500, {"error"})
    assert "insides" not in answer.text
    assert {name: answer.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS


def test_the_connection_stays_usable_after_a_fault(broken: httpx.Client) -> None:
    answer = broken.post("/embed", json={"inputs": "a"})
    assert answer.status_code == 500
    assert "connection" not in answer.headers  # a server that hangs up would send `connection: close`
    assert broken.get("/models").status_code == 200


INFER = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}


def panic() -> None:
    """Make the Rust code of tokenizers panic: the error that it raises is not an `Exception`."""
    Tokenizer(models.WordLevel({"a": 0}, "a")).encode("a").truncate(1, stride=1)


@pytest.mark.parametrize("text", ["a", "a " * 4_096], ids=["where it arrives", "in the thread"])
def test_a_tokenizer_panic_is_reported_as_an_internal_fault(
    serving: Server, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(TextTokenizer, "tokenize", lambda *given, **options: panic())
    service = Service(Capacity(num_workers=1))
    service.open(catalogue)
    with serving(create_app(service)) as client:
        answer = client.post("/classify", json={"inputs": text, "truncate": True})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        monkeypatch.undo()
        assert client.post("/classify", json={"inputs": "a"}).status_code == 200


def test_a_panic_during_inference_is_reported_and_the_worker_continues(
    serving: Server, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextTokenizer, "token_text", lambda *given: panic())
    service = Service(Capacity(num_workers=1))
    service.open(catalogue)
    with serving(create_app(service)) as client:
        answer = client.post("/fill-mask", json={"inputs": "a [MASK]"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert client.get("/health/live").status_code == 200
