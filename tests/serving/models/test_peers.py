"""A replica lives if its own process answers at its address."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from clozeline.registry.rollout import Replica
from clozeline.serving.models import peers
from clozeline.serving.models.peers import REPLICA, Peers, life


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert self.path == "/health/live"
        self.send_response(200)
        self.send_header(REPLICA, "a")
        self.end_headers()

    def log_message(self, *what: object) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_another_process_at_the_address_or_none_means_that_a_replica_is_dead(url: str) -> None:
    assert life(Replica(key="a", url=url)) == "alive"
    assert life(Replica(key="b", url=url)) == "dead"
    with socket.socket() as nobody:  # bound but not listening: the port is taken, and refuses connections
        nobody.bind(("127.0.0.1", 0))
        assert life(Replica(key="a", url=f"http://127.0.0.1:{nobody.getsockname()[1]}")) == "dead"


def test_a_replica_that_does_not_answer_counts_as_dead_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_TIMEOUT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        replica = Replica(key="a", url=f"http://127.0.0.1:{stopped.getsockname()[1]}")
        asked = Peers()
        assert (life(replica), asked.dead([replica])) == ("silent", [])
        monkeypatch.setattr(peers, "SILENT_SECONDS", 0.0)
        assert asked.dead([replica]) == [replica]
