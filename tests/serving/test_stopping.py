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

from tests.serving.conftest import Serve, wait_until

HOLDING = """
import pathlib, time
import clozeline.inference.language as e, clozeline.serving.uvicorn_adapter as s
s.MAX_BODY_SECONDS = s.WRITING_SECONDS = 0.2  # so that nothing but a deadline is waited for
rows = e.OpenEncoder.rows
def held(*given):
    while pathlib.Path({held!r}).exists():
        time.sleep(0.01)
    return rows(*given)
e.OpenEncoder.rows = held
"""
LONG = {"inputs": ["the list " * 30] * 30}
"""Five micro-batches."""


class Held(Serve):
    """Server whose micro-batches last until `release`, and whose shutdown waits only for deadlines."""

    def __init__(self, folder: Path, held: Path) -> None:
        super().__init__(folder, "--port", "0", "--threads", "1", before=HOLDING.format(held=str(held)))
        self._held = held

    def url(self) -> str:
        """Return the server's URL once it has started, which runs micro-batches too; from now on they are held."""
        url = super().url()
        self._held.touch()
        return url

    def release(self) -> None:
        self._held.unlink()


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


@pytest.fixture
def held(dist: Path, tmp_path: Path) -> Iterator[Held]:
    server = Held(dist.parent, tmp_path / "held")
    yield server
    server.process.kill()
    server.process.communicate()


def test_queued_requests_are_answered_before_the_server_stops(held: Held) -> None:
    url = held.url()
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client, ThreadPoolExecutor(4) as clients:
        bodies = [{"inputs": "a " * num_words} for num_words in (60, 40, 25, 12)]  # each runs alone
        accepted = [clients.submit(client.post, "/embed", json=body) for body in bodies]
        wait_until(lambda: 'clozeline_tokenize_seconds_count{model="encoder"} 4.0' in client.get("/metrics").text)
        held.process.send_signal(signal.SIGTERM)
        assert not any(answer.done() for answer in accepted)
        held.release()
        assert [answer.result().status_code for answer in accepted] == [200] * 4
    assert held.end()[0] == 0


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def is_stopping(url: str) -> bool:
    try:
        connected(url).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_stopping_server_waits_for_accepted_requests_until_their_deadline(held: Held) -> None:
    url = held.url()
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client, ThreadPoolExecutor(1) as clients:
        accepted = clients.submit(client.post, "/embed", json=LONG)
        _wait_until_it_is_busy(client)
        held.process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_stopping(url))
        time.sleep(1)  # longer than it waits for bodies and for clients that read
        held.release()
        assert accepted.result().status_code == 200
    code, _, stderr = held.end()
    assert code == 0
    assert "Traceback" not in stderr


def test_a_stopping_server_does_not_wait_for_an_unfinished_request(held: Held) -> None:
    with connected(held.url()) as connection:
        connection.sendall(
            b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
        )
        time.sleep(0.3)
        held.process.send_signal(signal.SIGTERM)
        code, _, stderr = held.end()
    assert code == 0
    assert "Traceback" not in stderr


def test_a_second_signal_drops_accepted_requests_and_says_so(held: Held) -> None:
    url = held.url()
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client, ThreadPoolExecutor(1) as clients:
        accepted = clients.submit(client.post, "/embed", json=LONG)
        _wait_until_it_is_busy(client)
        held.process.send_signal(signal.SIGINT)
        wait_until(lambda: is_stopping(url))  # two signals before it hears of one would be one
        held.process.send_signal(signal.SIGINT)
        answer = accepted.result()
        held.release()
    assert answer.status_code == 503
    assert answer.json()["error"].startswith("the server is stopping")
    assert answer.headers["connection"] == "close"
    code, _, stderr = held.end()
    assert code == 130
    assert "Traceback" not in stderr


def _wait_until_it_is_busy(client: httpx.Client) -> None:
    wait_until(lambda: "clozeline_queue_tokens 0.0" not in client.get("/metrics").text)


def test_an_ended_worker_stops_the_server_so_that_it_is_restarted(dist: Path) -> None:
    broken = "import clozeline.inference.language as e\ndef end(*given): raise SystemExit\ne.OpenEncoder.rows = end\n"
    serve = Serve(dist.parent, "--port", "0", "--threads", "1", before=broken)
    url = serve.url()
    assert httpx.post(f"{url}/embed", json={"inputs": "a"}, trust_env=False).status_code == 500
    code, _, stderr = serve.end()
    assert code == 75
    assert "clozeline-worker-0 ended" in stderr
