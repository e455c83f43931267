"""HEAD, which load balancers use, is answered wherever GET is, with the same status and headers and no body."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

import httpx
import pytest
from starlette.types import ASGIApp

from clozeline.serving.access import ApiKeys
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.serving.conftest import connection
from tests.serving.test_openapi import READ, asked

Server = Callable[[ASGIApp], AbstractContextManager[httpx.Client]]
PAGES = ["/", "/docs", "/openapi.json"]
OF_THE_MOMENT = {"/metrics": {"date", "content-length"}}


def told(answer: httpx.Response, path: str) -> tuple[int, dict[str, str]]:
    ignored = OF_THE_MOMENT.get(path, {"date"})
    return answer.status_code, {name: value for name, value in answer.headers.items() if name not in ignored}


@pytest.mark.parametrize("path", [*READ, *PAGES])
def test_every_read_route_answers_head_as_get(client: httpx.Client, path: str) -> None:
    at = asked(client, path)
    head, get = client.head(at), client.get(at)
    assert told(head, path) == told(get, path)
    assert head.status_code == 200
    assert int(head.headers["content-length"]) > 0


@pytest.mark.parametrize("path", ["/health/ready", "/nothing", "/embed"])
def test_the_answer_to_head_never_has_a_body(client: httpx.Client, path: str) -> None:
    with connection(client) as opened:
        opened.sendall(f"HEAD {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: opened.recv(65_536), b""))
    assert answer.endswith(b"\r\n\r\n")
    assert answer.count(b"\r\n\r\n") == 1


def test_head_is_refused_wherever_get_is(serving: Server, catalogue: Catalogue) -> None:
    loading, keyed = (Service(Capacity(num_workers=1)) for _ in range(2))
    keyed.open(catalogue)
    with serving(create_app(loading)) as client:
        assert [client.head(path).status_code for path in ("/health/ready", "/health/live", "/models")] == [
            503,
            200,
            503,
        ]
    with serving(create_app(keyed, ApiKeys.of(["a-key-of-some-length"]))) as client:
        assert [client.head(path).status_code for path in ("/health/ready", "/models")] == [200, 401]


def test_head_on_a_post_route_gets_405(client: httpx.Client) -> None:
    answer = client.head("/embed")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_a_head_request_is_logged_and_counted_as_head(
    serving: Server, catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="clozeline.serving")
    service = Service(Capacity(num_workers=1))
    service.open(catalogue)
    with serving(create_app(service)) as client:
        client.head("/v1/models/encoder")
        counts = client.get("/metrics").text
    assert 'clozeline_requests_total{route="/v1/models/{model}",status="200"} 1.0' in counts
    assert "HEAD /v1/models/{model} 200" in caplog.text
