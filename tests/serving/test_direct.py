"""The short way gives the answers of the long one, and leaves to it what is not plain."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from clozeline.serving.app import create_app, direct
from clozeline.serving.models.catalogue import Catalogue
from clozeline.serving.models.service import Capacity, Service
from tests.serving.conftest import run_app
from tests.serving.test_openapi import ASKED, EXAMPLES, asked

Serving = Callable[[ASGIApp], AbstractContextManager[httpx.Client]]
PLAIN = {"content-type": "application/json"}
UNREAD = ({"content-type": "text/plain"}, PLAIN | {"content-encoding": "gzip"})
OF_THE_MOMENT = {"date", "x-tokenization-time", "x-queue-time", "x-inference-time", "x-total-time"}
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


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("the long way was gone")


def served(catalogue: Catalogue, **capacity: int) -> Service:
    service = Service(Capacity(num_workers=1, **capacity))
    service.open(catalogue)
    return service


@pytest.fixture(scope="module")
def short(catalogue: Catalogue) -> Iterator[httpx.Client]:
    """A client of an application that has nothing but the short way."""
    app = create_app(served(catalogue))
    app.router.middleware_stack = direct(nothing, app.state.service)
    with run_app(app) as client:
        yield client


@pytest.fixture(scope="module")
def long(catalogue: Catalogue) -> Iterator[httpx.Client]:
    """A client of an application without it."""
    app = create_app(served(catalogue))
    app.router.middleware_stack = app.router.app
    with run_app(app) as client:
        yield client


def told(answer: httpx.Response) -> tuple[int, bytes, dict[str, str]]:
    return answer.status_code, answer.content, {k: v for k, v in answer.headers.items() if k not in OF_THE_MOMENT}


def test_every_route_with_a_body_and_no_name_in_its_path_goes_the_short_way(catalogue: Catalogue) -> None:
    assert direct(nothing, served(catalogue)).paths == {path for path, _, _ in EXAMPLES if "{" not in path}


@pytest.mark.parametrize(
    ("path", "name", "body"),
    [example for example in EXAMPLES if "{" not in example[0]],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_example_is_answered_the_same_both_ways(
    short: httpx.Client, long: httpx.Client, path: str, name: str, body: object
) -> None:
    answers = [client.post(asked(long, path, ASKED.get(name, "encoder")), json=body) for client in (short, long)]
    assert told(answers[0]) == told(answers[1])
    assert answers[0].status_code == 200


@pytest.mark.parametrize("body", FAULTY.values(), ids=FAULTY)
def test_a_fault_is_told_the_same_both_ways(client: httpx.Client, long: httpx.Client, body: bytes) -> None:
    answers = [each.post("/embed", content=body, headers=PLAIN) for each in (client, long)]
    assert told(answers[0]) == told(answers[1])
    assert answers[0].status_code in {400, 404, 422}
    assert len(answers[0].content) < 2000


def test_of_two_content_types_the_first_counts(client: httpx.Client) -> None:
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
def test_what_is_not_plain_goes_the_long_way(
    client: httpx.Client, short: httpx.Client, headers: dict[str, str], status: int
) -> None:
    body = b'{"inputs": "a text"}'
    assert client.post("/embed", content=body, headers=headers).status_code == status
    assert short.post("/embed", content=body, headers=headers).status_code == 500


def test_answers_that_are_kept_are_looked_for_on_the_long_way(catalogue: Catalogue, serving: Serving) -> None:
    service = served(catalogue, cache_bytes=1 << 20)
    assert not direct(nothing, service).paths
    with serving(create_app(service)) as client:
        answers = [client.post("/embed", json={"inputs": "a text"}) for _ in range(2)]
        content = answers[0].request.content
        unread = [client.post("/embed", content=content, headers=headers).status_code for headers in UNREAD]
    assert [answer.headers.get("x-cache") for answer in answers] == [None, "hit"]
    assert answers[0].content == answers[1].content
    assert unread == [415, 415]  # whatever is kept for these very bytes


def test_a_request_is_counted_under_its_route(client: httpx.Client) -> None:
    def counted() -> float:
        lines = client.get("/metrics").text.splitlines()
        line = next(line for line in lines if line.startswith('clozeline_requests_total{route="/embed",status="200"}'))
        return float(line.rpartition(" ")[2])

    client.post("/embed", json={"inputs": "a text"})
    before = counted()
    client.post("/embed", json={"inputs": "a text"})
    assert counted() == before + 1
