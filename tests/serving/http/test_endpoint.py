"""Checks of a request before its protocol sees it, also if its answer is cached; feedback scores what was answered."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from clozeline.serving.asking import TIMES
from clozeline.serving.models import Catalogue
from tests.make.apps import running
from tests.serving.http.test_bodies import assert_envelope
from tests.serving.test_metrics import counted

BODY = b'{"inputs": "the list"}'
JSON = {"content-type": "application/json"}


def test_a_large_body_of_the_wrong_shape_gets_a_short_refusal(client: httpx.Client) -> None:
    deep = b'{"inputs": ' + b"[" * 1000 + b"]" * 1000 + b"}"
    long_key = b'{"' + b"k" * 1_000_000 + b'": 1, "inputs": "a text"}'
    for body in (deep, long_key):
        answer = client.post("/embed", content=body, headers=JSON)
        assert answer.status_code in {400, 422}
        assert len(answer.content) < 2000


@pytest.fixture(scope="module")
def keeping(catalogue: Catalogue) -> Iterator[httpx.Client]:
    """Client of a server with a cache that holds the answer to BODY."""
    with running(catalogue, cache_bytes=1 << 20) as client:
        assert "x-cache" not in client.post("/embed", content=BODY, headers=JSON).headers
        yield client


def test_headers_decide_whether_a_body_is_read_although_its_answer_is_cached(
    keeping: httpx.Client, client: httpx.Client
) -> None:
    for headers, status in (
        ({}, 415),
        (JSON | {"x-timeout-ms": "5000"}, 200),
        (JSON | {"x-timeout-ms": "soon"}, 422),
        (JSON | {"content-encoding": "gzip"}, 415),
    ):
        cached, new = (each.post("/embed", content=BODY, headers=headers) for each in (keeping, client))
        assert (cached.status_code, new.status_code) == (status, status)
        assert ("x-cache" in cached.headers, "x-cache" in new.headers) == (status == 200, False)
        assert status == 200 or cached.content == new.content


def test_a_cached_answer_has_no_request_id_and_zero_times_if_its_route_has_times(keeping: httpx.Client) -> None:
    again = keeping.post("/embed", content=BODY, headers=JSON).headers
    assert (again["x-cache"], again["x-compute-tokens"]) == ("hit", "4")
    assert [float(again[name]) for name in TIMES] == [0, 0, 0, 0]
    first, again = (keeping.post("/tokenize", content=BODY, headers=JSON).headers for _ in range(2))
    assert ("x-cache" in first, again.keys() - first.keys()) == (False, {"x-cache"})
    first, again = (keeping.post("/classify", content=BODY, headers=JSON).headers for _ in range(2))
    assert ("x-request-id" in first, "x-request-id" in again) == (True, False)
    assert "x-cache" not in keeping.post("/embed?level=other", content=BODY, headers=JSON).headers
    counts = counted(keeping)
    for _ in range(3):
        keeping.post("/tokenize", content=BODY, headers=JSON)
    keeping.post("/tokenize", json={"inputs": "another text"})
    added = {name: number - counts.get(name, 0) for name, number in counted(keeping).items()}
    assert added["clozeline_requests_total{route=/tokenize,status=200}"] == 4
    assert [added[f"clozeline_kept_answers_total{{result={result}}}"] for result in ("hit", "miss")] == [3, 1]


SENTENCE = "Maria Lopez lives in Oslo."
ASKED = {"question": "Where does Maria live?", "context": f"{SENTENCE} She works in Rome."}
PERSON = {"entity_group": "PER", "start": 1, "end": 2}


def entities(answer: Any) -> list[dict[str, Any]]:
    return [{name: entity[name] for name in PERSON} for entity in reversed(answer)]


def test_the_best_answer_is_right_and_another_is_wrong(client: httpx.Client) -> None:
    for path, inputs, best, wrong in (
        ("/classify", SENTENCE, lambda answer: answer[0][0]["label"], "another label"),
        ("/tag", SENTENCE, entities, [PERSON]),
        ("/answer", ASKED, lambda answer: answer["answer"], "another span"),
        ("/fill-mask", "the [MASK]", lambda answer: answer[0]["token_str"], "another word"),
    ):
        for is_right in (True, False):
            asked = client.post(path, json={"inputs": inputs}).raise_for_status()
            right = best(asked.json()) if is_right else wrong
            told = {"request_id": asked.headers["x-request-id"], "right": [right]}
            scored = client.post("/feedback", json=told).raise_for_status().json()
            assert (scored["num_right"], scored["num_wrong"]) == (int(is_right), int(not is_right))
            assert client.post("/feedback", json=told).status_code == 404, "counts once"


def test_answers_of_another_kind_are_refused_and_single_tags_cannot_be_scored(client: httpx.Client) -> None:
    for path, right in (("/tag", "PER"), ("/classify", [])):
        asked = client.post(path, json={"inputs": "the list"}).raise_for_status()
        told = {"request_id": asked.headers["x-request-id"], "right": [right]}
        assert_envelope(client.post("/feedback", json=told), 422, "other_answers", "right")
    asked = client.post("/tag", json={"inputs": SENTENCE, "parameters": {"aggregation_strategy": "none"}})
    assert "x-request-id" not in asked.raise_for_status().headers
