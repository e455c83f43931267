"""`clozeline serve` as a process of its own ends on a signal, and when a worker ends."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.serving.conftest import Serve

SLOW = """
import time
import clozeline.inference.encoder as e, clozeline.serving.uvicorn_adapter as s
s.MAX_BODY_SECONDS = s.WRITING_SECONDS = 0.2  # so that nothing but a deadline is waited for
rows = e.Encoder.rows
e.Encoder.rows = lambda *given: time.sleep(0.5) or rows(*given)
"""
LONG = {"inputs": ["the list " * 30] * 30}
"""Five micro-batches."""


def test_an_accepted_request_is_answered_before_the_server_stops(serve: Serve) -> None:
    url = serve.url()
    body = json.dumps({"inputs": ["the [MASK] of the list " * 8] * 256, "parameters": {"top_k": 40}}).encode()
    head = ["POST /fill-mask HTTP/1.1", "host: localhost", "content-type: application/json", "expect: 100-continue"]
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall("\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode())
        assert connection.recv(1024).startswith(b"HTTP/1.1 100")  # the application waits for the body
        serve.process.send_signal(signal.SIGTERM)
        connection.sendall(body)
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert len(json.loads(answer.split(b"\r\n\r\n", 1)[1])) == 256
    assert serve.end()[0] == 0


def test_queued_requests_are_answered_before_the_server_stops(dist: Path) -> None:
    slow = "import clozeline.inference.encoder as e, time\nrows = e.Encoder.rows\n"
    slow += "e.Encoder.rows = lambda *given: time.sleep(0.5) or rows(*given)\n"
    serve = Serve(dist.parent, "--port", "0", "--threads", "1", before=slow)
    url = serve.url()
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client, ThreadPoolExecutor(4) as clients:
        bodies = [{"inputs": "a " * num_words} for num_words in (60, 40, 25, 12)]  # each runs alone
        accepted = [clients.submit(client.post, "/embed", json=body) for body in bodies]
        while 'clozeline_tokenize_seconds_count{model="encoder"} 4.0' not in client.get("/metrics").text:
            assert not all(answer.done() for answer in accepted)
        serve.process.send_signal(signal.SIGTERM)
        assert not all(answer.done() for answer in accepted)
        assert [answer.result().status_code for answer in accepted] == [200] * 4
    assert serve.end()[0] == 0


@pytest.fixture
def slow(dist: Path) -> Iterator[Serve]:
    """Server that takes half a second per micro-batch, and whose shutdown waits only for deadlines."""
    server = Serve(dist.parent, "--port", "0", "--threads", "1", before=SLOW)
    yield server
    server.process.kill()
    server.process.communicate()


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def test_a_stopping_server_waits_for_accepted_requests_until_their_deadline(slow: Serve) -> None:
    url = slow.url()
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client, ThreadPoolExecutor(1) as clients:
        accepted = clients.submit(client.post, "/embed", json=LONG)
        _wait_until_it_is_busy(client)
        slow.process.send_signal(signal.SIGTERM)
        assert accepted.result().status_code == 200
    code, _, stderr = slow.end()
    assert code == 0
    assert "Traceback" not in stderr


def test_a_stopping_server_does_not_wait_for_an_unfinished_request(slow: Serve) -> None:
    with connected(slow.url()) as connection:
        connection.sendall(
            b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
        )
        time.sleep(0.3)
        slow.process.send_signal(signal.SIGTERM)
        code, _, stderr = slow.end(timeout_seconds=20)
    assert code == 0
    assert "Traceback" not in stderr


def test_a_second_signal_drops_accepted_requests_and_says_so(slow: Serve) -> None:
    url = slow.url()
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client, ThreadPoolExecutor(1) as clients:
        accepted = clients.submit(client.post, "/embed", json=LONG)
        _wait_until_it_is_busy(client)
        slow.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        slow.process.send_signal(signal.SIGINT)
        answer = accepted.result()
    assert answer.status_code == 503
    assert answer.json()["error"].startswith("the server is stopping")
    assert answer.headers["connection"] == "close"
    code, _, stderr = slow.end()
    assert code == 130
    assert "Traceback" not in stderr


def _wait_until_it_is_busy(client: httpx.Client) -> None:
    while "clozeline_queue_tokens 0.0" in client.get("/metrics").text:
        time.sleep(0.01)


def test_an_ended_worker_stops_the_server_so_that_it_is_restarted(dist: Path) -> None:
    broken = "import clozeline.inference.encoder as e\ndef end(*given): raise SystemExit\ne.Encoder.rows = end\n"
    serve = Serve(dist.parent, "--port", "0", "--threads", "1", before=broken)
    url = serve.url()
    assert httpx.post(f"{url}/embed", json={"inputs": "a"}, trust_env=False).status_code == 500
    code, _, stderr = serve.end()
    assert code == 75
    assert "clozeline-worker-0 ended" in stderr
