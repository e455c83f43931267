"""Counters read from a server match the requests it got."""

from collections.abc import Iterator

import httpx
import pytest

from clozeline.orchestration.drift import Traffic, ask, read
from clozeline.registry.sources import parse_sources
from clozeline.serving.access import ApiKeys
from clozeline.serving.loading import open_source
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from clozeline.system.errors import DataError, TransientError
from tests.make.packages import write_classifier, write_encoder
from tests.serving.conftest import run_app

KEY = "a-key-of-some-length"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("dist")
    write_encoder(folder / "encoder")
    write_classifier(folder / "library")
    service = Service(Capacity(num_workers=1))
    sources = parse_sources([str(folder / "encoder"), str(folder / "library")])
    service.open(Catalogue([open_source(source, "int8") for source in sources]))
    with run_app(create_app(service, ApiKeys.of([KEY]))) as client:
        client.headers["x-api-key"] = KEY
        yield client


def test_lengths_unknown_tokens_and_confidence_of_each_model_are_read(client: httpx.Client) -> None:
    client.post("/embed", json={"inputs": ["a 漢", "a " * 30]}).raise_for_status()
    client.post("/classify", json={"inputs": "the list"}).raise_for_status()
    served = ask(str(client.base_url), KEY)
    assert set(served) == {"encoder", "library"}
    card = client.get("/models").json()["models"][0]
    encoder = served["encoder"]
    assert (encoder.version, encoder.sha256) == (card["version"], card["sha256"])
    assert {bound: count for bound, count in encoder.traffic.texts_by_length.items() if count} == {"4.0": 1, "32.0": 1}
    assert (encoder.traffic.tokens, encoder.traffic.unknown_tokens) == (4 + 32, 1)
    assert encoder.traffic.num_answers == 0
    assert served["library"].traffic.num_answers == 1


def test_feedback_on_answers_is_counted_once_by_model_and_stores_no_text(client: httpx.Client) -> None:
    def traffic() -> Traffic:
        return ask(str(client.base_url), KEY)["library"].traffic

    before = traffic()
    answer = client.post("/classify", json={"inputs": ["the list", "open a file"]}).raise_for_status()
    best = [labels[0]["label"] for labels in answer.json()]
    told = {"request_id": answer.headers["x-request-id"], "right": [best[0], "another label"]}
    assert client.post("/feedback", json={**told, "right": best[:1]}).status_code == 422
    scored = client.post("/feedback", json=told).raise_for_status().json()
    assert (scored["model"], scored["num_right"], scored["num_wrong"]) == ("library", 1, 1)
    assert client.post("/feedback", json=told).status_code == 404
    after = traffic().since(before)
    assert (after.right, after.wrong, after.num_scored, after.wrong_rate) == (1, 1, 2, 0.5)


def test_a_server_that_refuses_or_does_not_answer_is_reported(client: httpx.Client) -> None:
    with pytest.raises(TransientError, match="does not return the counters"):
        ask(str(client.base_url))
    with pytest.raises(TransientError, match="does not return the counters"):
        ask("http://127.0.0.1:9")
    with pytest.raises(TransientError, match="correct the URL"):
        ask("http://127.0.0.1:PORT")


@pytest.mark.parametrize("text", ["", "python_info 1.0\n", "<html>", "a{b=\n"])
def test_malformed_counters_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="gives no counters"):
        read(text, "http://127.0.0.1:8000")


def test_a_file_url_is_refused() -> None:
    with pytest.raises(DataError, match="not the URL of a server"):
        ask("file:///metrics")


def test_traffic_counts_can_be_added_and_subtracted() -> None:
    first = Traffic(texts_by_length={"4.0": 1, "8.0": 2}, answers_by_confidence={"1.0": 3}, tokens=9, unknown_tokens=1)
    more = Traffic(texts_by_length={"4.0": 5, "8.0": 2}, answers_by_confidence={"1.0": 3}, tokens=20, unknown_tokens=1)
    came = more.since(first)
    assert (came.num_texts, came.num_answers, came.tokens, came.unknown_rate) == (4, 0, 11, 0.0)
    assert first.plus(came) == more


def test_after_a_restart_all_counts_are_new_traffic() -> None:
    before = Traffic(texts_by_length={"4.0": 10}, tokens=40)
    after = Traffic(texts_by_length={"4.0": 2}, tokens=8)
    assert after.since(before) == after
