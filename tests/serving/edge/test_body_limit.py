"""Each body has to arrive in time, and all bodies together have to fit into a limit of memory."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack

import httpx
import pytest
from starlette.types import ASGIApp

from clozeline.serving.limits import BodyBounds
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.serving.conftest import connection, wait_until

Server = Callable[[ASGIApp], AbstractContextManager[httpx.Client]]
Opened = Callable[[BodyBounds], httpx.Client]
HALF = 5_000


@pytest.fixture
def opened(serving: Server, catalogue: Catalogue) -> Iterator[Opened]:
    with ExitStack() as stack:

        def open_with(bounds: BodyBounds) -> httpx.Client:
            service = Service(Capacity(num_workers=1))
            service.open(catalogue)
            return stack.enter_context(serving(create_app(service, bounds=bounds)))

        yield open_with


def begun(client: httpx.Client) -> socket.socket:
    """Return a connection that has sent half of the body that its head announces."""
    opened = connection(client)
    head = (
        f"POST /classify HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {2 * HALF}\r\n\r\n"
    )
    opened.sendall(head.encode() + b'{"inputs": "a"'.ljust(HALF))
    return opened


def rejected(client: httpx.Client, reason: str) -> bool:
    return f'clozeline_rejections_total{{reason="{reason}"}} 1.0' in client.get("/metrics").text


def test_an_incomplete_body_is_reported(opened: Opened) -> None:
    client = opened(BodyBounds(seconds=0.2))
    with begun(client) as slow:
        answer = b"".join(iter(lambda: slow.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_too_slow"
    assert rejected(client, "body_too_slow")


def test_the_memory_of_all_bodies_is_bounded_and_returned(opened: Opened) -> None:
    client = opened(BodyBounds(all_bytes=HALF + 100))
    body = json.dumps({"inputs": "a"}).ljust(200).encode()
    headers = {"content-type": "application/json"}
    with begun(client):
        wait_until(lambda: client.post("/embed", content=body, headers=headers).status_code == 429)
        refused = client.post("/classify", content=body, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("1", "true")
        assert client.get("/health/ready").status_code == 200
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200  # this small body still fits
    wait_until(lambda: client.post("/embed", content=body, headers=headers).status_code == 200)


def test_a_body_that_is_too_large_is_counted_as_rejected(opened: Opened) -> None:
    client = opened(BodyBounds(one_bytes=100))
    assert client.post("/embed", json={"inputs": "a" * 200}).status_code == 413
    assert rejected(client, "body_too_large")
