"""Checks of a request before its protocol sees it: its content type, its timeout, and the schema of its body."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import httpx
import pytest
from starlette.types import ASGIApp

from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app

Serving = Callable[[ASGIApp], AbstractContextManager[httpx.Client]]
PLAIN = {"content-type": "application/json"}
UNREAD = ({"content-type": "text/plain"}, PLAIN | {"content-encoding": "gzip"})
FAULTY = {
    "no JSON": b'{"inputs": ',
    "a lone surrogate": b'{"inputs": "\\ud800"}',
    "nothing": b"",
    "null": b"null",
    "another key": b'{"input": "a text"}',
    "a number for a text": b'{"inputs": 7}',
    "what Python cannot write": b'{"inputs": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    "a key of a million characters": b'{"' + b"k" * 1_000_000 + b'": 1, "inputs": "a text"}',
    "a model that is not there": b'{"inputs": "a text", "model": "nobody"}',
    "a text that is too long": b'{"inputs": "' + b"text " * 400 + b'"}',
}


@pytest.mark.parametrize("body", FAULTY.values(), ids=FAULTY)
def test_a_body_of_the_wrong_shape_gets_a_short_refusal(client: httpx.Client, body: bytes) -> None:
    answer = client.post("/embed", content=body, headers=PLAIN)
    assert answer.status_code in {400, 404, 422}
    assert len(answer.content) < 2000


def test_the_first_of_two_content_types_counts(client: httpx.Client) -> None:
    types = [("content-type", "text/plain"), ("content-type", "application/json")]
    assert client.post("/embed", content=b'{"inputs": "a text"}', headers=types).status_code == 415


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "application/json; charset=utf-16"}, 415),
        ({"content-type": "text/plain"}, 415),
        ({}, 415),
        (PLAIN | {"x-timeout-ms": "5000"}, 200),
        (PLAIN | {"x-timeout-ms": "soon"}, 422),
        (PLAIN | {"content-encoding": "identity"}, 200),
        (PLAIN | {"content-encoding": "gzip"}, 415),
    ],
    ids=[
        "another name of JSON",
        "other letters",
        "text",
        "no type",
        "a timeout",
        "no timeout",
        "as it is",
        "compressed",
    ],
)
def test_a_body_is_read_only_with_a_json_content_type(
    client: httpx.Client, headers: dict[str, str], status: int
) -> None:
    assert client.post("/embed", content=b'{"inputs": "a text"}', headers=headers).status_code == status


def test_a_body_of_the_wrong_type_is_refused_even_if_its_bytes_are_cached(
    catalogue: Catalogue, serving: Serving
) -> None:
    service = Service(Capacity(num_workers=1, cache_bytes=1 << 20))
    service.open(catalogue)
    with serving(create_app(service)) as client:
        answers = [client.post("/embed", json={"inputs": "a text"}) for _ in range(2)]
        content = answers[0].request.content
        unread = [client.post("/embed", content=content, headers=headers).status_code for headers in UNREAD]
    assert [answer.headers.get("x-cache") for answer in answers] == [None, "hit"]
    assert answers[0].content == answers[1].content
    assert unread == [415, 415]


def test_a_request_is_counted_under_its_route(client: httpx.Client) -> None:
    def counted() -> float:
        lines = client.get("/metrics").text.splitlines()
        line = next(line for line in lines if line.startswith('clozeline_requests_total{route="/embed",status="200"}'))
        return float(line.rpartition(" ")[2])

    client.post("/embed", json={"inputs": "a text"})
    before = counted()
    client.post("/embed", json={"inputs": "a text"})
    assert counted() == before + 1
