"""Invalid input on a connection gets an error in JSON, is bounded, and closes the connection."""

import contextlib
import json
import socket
import time

import httpx
import pytest

from clozeline.serving import uvicorn_adapter
from clozeline.serving.access import SECURITY_HEADERS
from tests.serving.conftest import Hosted, connection

BODY_TO_COME = b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"


def rest(connection: socket.socket) -> bytes:
    """Return the bytes that arrive until the server hangs up."""
    return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01", b"hello\r\n\r\n", b"GET /health HTTP/1.1\r\n:\r\n\r\n"])
def test_bytes_that_are_not_http_are_refused_in_json(client: httpx.Client, sent: bytes) -> None:
    with connection(client) as opened:
        opened.sendall(sent)
        head, _, body = rest(opened).partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert status == "HTTP/1.1 400 Bad Request"
    assert json.loads(body)["error"]["code"] == "not_http"
    expected = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    assert headers.items() >= (expected | SECURITY_HEADERS).items()


def test_an_endless_request_head_is_refused(client: httpx.Client) -> None:
    with connection(client) as opened:
        opened.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-long: ")
        received = b""
        opened.settimeout(0.05)
        for _ in range(100):
            opened.sendall(b"a" * 4_096)
            try:
                received = opened.recv(65_536)
                break
            except TimeoutError:
                continue
    assert received.startswith(b"HTTP/1.1 431 ")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "head_too_large"


def test_a_long_body_does_not_count_as_head_and_the_connection_stays_open(client: httpx.Client) -> None:
    body = b'{"inputs": "a"}'.ljust(3 * uvicorn_adapter.MAX_HEAD_BYTES)
    last = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    with connection(client) as opened:
        opened.sendall(2 * (BODY_TO_COME % len(body) + b"\r\n" + body) + last[:30])  # a head begins beside a body
        said = opened.recv(65_536)
        opened.sendall(last[30:])
        assert (said + rest(opened)).count(b"HTTP/1.1 200 ") == 3


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nhost:"])
def test_a_connection_with_an_incomplete_head_is_closed(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(uvicorn_adapter, "HEAD_SECONDS", 0.2)
    with connection(client) as opened:
        opened.sendall(sent)
        assert rest(opened) == b""


def test_a_body_may_take_longer_than_a_request_head(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_adapter, "HEAD_SECONDS", 0.2)
    with hosted() as (client, _), connection(client) as opened:
        opened.sendall(BODY_TO_COME % 15 + b"connection: close\r\n\r\n")
        opened.settimeout(0.6)
        with pytest.raises(TimeoutError):
            opened.recv(1)  # the server still waits for the body
        opened.settimeout(20)
        opened.sendall(b'{"inputs": "a"}')
        assert rest(opened).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("name", "value"), [("READING_BYTES_PER_SECOND", 1e9), ("MAX_UNREAD_BYTES", 0)])
def test_a_client_that_does_not_read_its_answer_is_cut_off(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    monkeypatch.setattr(uvicorn_adapter, "READING_SECONDS", 0.2)
    monkeypatch.setattr(uvicorn_adapter, name, value)
    body = json.dumps({"inputs": 3 * ["a " * 49_000]}).encode()
    with hosted() as (client, _), connection(client) as slow:
        slow.sendall(b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
        slow.sendall(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        slow.recv(1, socket.MSG_PEEK)  # the answer has begun
        time.sleep(1)
        received = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while some := slow.recv(65_536):
                received += some
    assert received.startswith(b"HTTP/1.1 200 ")
    assert not received.endswith(b"]]")


def test_tokens_whose_answer_would_be_too_large_are_refused(client: httpx.Client) -> None:
    answer = client.post("/tokenize", json={"inputs": 4 * ["a " * 49_000]})
    assert answer.status_code == 422
    assert "350,000 together" in answer.json()["error"]
