"""Checks of a request before its protocol sees it, also if its answer is cached."""

from collections.abc import Iterator

import httpx
import pytest

from clozeline.serving.asking import TIMES
from clozeline.serving.models import Catalogue
from tests.make.apps import running
from tests.serving.test_metrics import counted

BODY = b'{"inputs": "the list"}'
JSON = {"content-type": "application/json"}
FAULTY = {
    "what Python cannot write": b'{"inputs": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    "a key of a million characters": b'{"' + b"k" * 1_000_000 + b'": 1, "inputs": "a text"}',
    "a text that is too long": b'{"inputs": "' + b"text " * 400 + b'"}',
}


@pytest.mark.parametrize("body", FAULTY.values(), ids=FAULTY)
def test_a_large_body_of_the_wrong_shape_gets_a_short_refusal(client: httpx.Client, body: bytes) -> None:
    answer = client.post("/embed", content=body, headers=JSON)
    assert answer.status_code in {400, 422}
    assert len(answer.content) < 2000


def test_the_first_of_two_content_types_counts(client: httpx.Client) -> None:
    types = [("content-type", "text/plain"), ("content-type", "application/json")]
    assert client.post("/embed", content=BODY, headers=types).status_code == 415


@pytest.fixture(scope="module")
def keeping(catalogue: Catalogue) -> Iterator[httpx.Client]:
    """Client of a server with a cache that holds the answer to BODY."""
    with running(catalogue, cache_bytes=1 << 20) as client:
        assert "x-cache" not in client.post("/embed", content=BODY, headers=JSON).headers
        yield client


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "application/json; charset=utf-16"}, 415),
        ({}, 415),
        (JSON | {"x-timeout-ms": "5000"}, 200),
        (JSON | {"x-timeout-ms": "soon"}, 422),
        (JSON | {"x-timeout-ms": "0"}, 422),
        (JSON | {"content-encoding": "gzip"}, 415),
    ],
)
def test_headers_decide_whether_a_body_is_read_although_its_answer_is_cached(
    keeping: httpx.Client, client: httpx.Client, headers: dict[str, str], status: int
) -> None:
    cached, new = (each.post("/embed", content=BODY, headers=headers) for each in (keeping, client))
    assert (cached.status_code, new.status_code) == (status, status)
    assert ("x-cache" in cached.headers, "x-cache" in new.headers) == (status == 200, False)
    assert status == 200 or cached.content == new.content


def test_an_answer_at_another_level_is_another_answer(keeping: httpx.Client) -> None:
    assert "x-cache" not in keeping.post("/embed?level=other", content=BODY, headers=JSON).headers


def test_a_cached_answer_has_no_request_id_and_zero_times_if_its_route_has_times(keeping: httpx.Client) -> None:
    again = keeping.post("/embed", content=BODY, headers=JSON).headers
    assert (again["x-cache"], again["x-compute-tokens"]) == ("hit", "4")
    assert [float(again[name]) for name in TIMES] == [0, 0, 0, 0]
    first, again = (keeping.post("/tokenize", content=BODY, headers=JSON).headers for _ in range(2))
    assert ("x-cache" in first, again.keys() - first.keys()) == (False, {"x-cache"})
    first, again = (keeping.post("/classify", content=BODY, headers=JSON).headers for _ in range(2))
    assert ("x-request-id" in first, "x-request-id" in again) == (True, False)


def test_requests_are_counted_under_their_route_and_cache_hits_and_misses_too(catalogue: Catalogue) -> None:
    with running(catalogue, cache_bytes=1 << 20) as client:
        for _ in range(4):
            client.post("/embed", content=BODY, headers=JSON)
        counts = counted(client)
    assert counts["clozeline_requests_total{route=/embed,status=200}"] == 4
    assert counts["clozeline_kept_answers_total{result=miss}"] == 1
    assert counts["clozeline_kept_answers_total{result=hit}"] == 3
