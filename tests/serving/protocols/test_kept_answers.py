"""A cached answer is refused whenever a new one would be, and does not repeat the times of the first request."""

from collections.abc import Iterator

import httpx
import pytest

from clozeline.serving.asking import TIMES
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.serving.conftest import run_app
from tests.serving.test_metrics import counted

BODY = b'{"inputs": "the list"}'
JSON = {"content-type": "application/json"}


@pytest.fixture
def keeping(catalogue: Catalogue) -> Iterator[httpx.Client]:
    """Client of a server with a cache that holds the answer to BODY."""
    service = Service(Capacity(num_workers=1, cache_bytes=1 << 20))
    service.open(catalogue)
    with run_app(create_app(service)) as client:
        assert "x-cache" not in client.post("/embed", content=BODY, headers=JSON).headers
        yield client


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({}, 415),
        (JSON | {"x-timeout-ms": "abc"}, 422),
        (JSON | {"x-timeout-ms": "0"}, 422),
        (JSON | {"x-timeout-ms": ""}, 422),
    ],
    ids=["text", "no type", "a word for a time", "no time at all", "an empty time"],
)
def test_an_invalid_request_is_refused_although_its_answer_is_cached(
    keeping: httpx.Client, client: httpx.Client, headers: dict[str, str], status: int
) -> None:
    answers = [each.post("/embed", content=BODY, headers=headers) for each in (keeping, client)]
    assert [answer.status_code for answer in answers] == [status, status]
    assert answers[0].content == answers[1].content


def test_a_request_with_a_timeout_gets_the_cached_answer_too(keeping: httpx.Client) -> None:
    answer = keeping.post("/embed", content=BODY, headers=JSON | {"x-timeout-ms": "5000"})
    assert (answer.status_code, answer.headers["x-cache"]) == (200, "hit")


def test_an_answer_at_another_level_is_another_answer(keeping: httpx.Client) -> None:
    assert "x-cache" not in keeping.post("/embed?level=other", content=BODY, headers=JSON).headers


def test_a_cached_answer_reports_zero_times(keeping: httpx.Client) -> None:
    again = keeping.post("/embed", content=BODY, headers=JSON)
    assert again.headers["x-cache"] == "hit"
    assert [float(again.headers[name]) for name in TIMES] == [0, 0, 0, 0]
    assert again.headers["x-compute-tokens"] == "4"


def test_a_cached_answer_adds_no_times_to_a_route_without_them(keeping: httpx.Client) -> None:
    first, again = (keeping.post("/tokenize", content=BODY, headers=JSON) for _ in range(2))
    assert ("x-cache" in first.headers, again.headers["x-cache"]) == (False, "hit")
    assert again.headers.keys() - first.headers.keys() == {"x-cache"}


def test_cache_hits_and_misses_are_counted(keeping: httpx.Client) -> None:
    for _ in range(3):
        keeping.post("/embed", content=BODY, headers=JSON)
    counts = counted(keeping)
    assert counts["clozeline_kept_answers_total{result=miss}"] == 1
    assert counts["clozeline_kept_answers_total{result=hit}"] == 3
