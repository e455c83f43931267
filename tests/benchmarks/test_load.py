"""The loads of the HTTP benchmarks: when requests are sent, and from when their latency counts."""

import json
import threading
import time
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

import serving
from comparison.load import Load, arrivals, load, open_load
from tests.make.servers import Handler, answering

STALL_SECONDS = 0.5
DELAY_SECONDS = 0.02


class Server(ThreadingHTTPServer):
    """Server that answers after a while, and records the requests.

    `/together` holds up answers until as many requests as `together` wait; `/stall` until STALL_SECONDS after the first
    one; `/mixed` answers every fourth one, refuses the next, calls the next wrong, and cuts the last off.
    """

    def __init__(self, together: int = 1) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.together = threading.Barrier(together)
        self.bodies: list[bytes] = []
        self.stalled_until: float | None = None
        self.lock = threading.Lock()


class Answer(Handler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        with self.server.lock:
            self.server.bodies.append(body)
            self.server.stalled_until = self.server.stalled_until or time.perf_counter() + STALL_SECONDS
        if self.path == "/together":
            self.server.together.wait(timeout=60)
        time.sleep(
            max(0.0, self.server.stalled_until - time.perf_counter()) if self.path == "/stall" else DELAY_SECONDS
        )
        status = (200, 503, 400, None)[int(body) % 4] if self.path == "/mixed" else 200
        if status is None:
            self.close_connection = True
            return
        with suppress(ConnectionError):  # the client may have left
            self.reply(status, body)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_the_load_sends_each_body_once_over_n_clients_and_times_every_answer() -> None:
    with answering(Server(together=4)) as server:
        done = load(server.server_port, "/together", numbered(20), 4)
        assert sorted(map(int, server.bodies)) == list(range(20))
        assert len(done.latencies_seconds) == 20
        assert done.seconds >= 5 * DELAY_SECONDS
        assert min(done.latencies_seconds) >= DELAY_SECONDS
        assert done.requests_per_second == pytest.approx(20 / done.seconds)
        with pytest.raises(RuntimeError, match="503"):
            load(server.server_port, "/mixed", numbered(2), 1)


def test_arrivals_form_a_poisson_process_that_depends_on_the_seed_and_scales_with_the_rate() -> None:
    """The deviation of the gaps equals the mean gap."""
    due = arrivals(100.0, 4000, seed=3)
    gaps = np.diff([0.0, *due])
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.01, rel=0.08)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.12)
    assert due == arrivals(100.0, 4000, seed=3) != arrivals(100.0, 4000, seed=4)
    assert np.allclose(arrivals(50.0, 4000, seed=3), 2 * np.array(due))


def test_requests_are_sent_when_they_are_due_whether_or_not_others_are_answered() -> None:
    """The server answers no request before the last one is sent; delays of the client count, and are reported."""
    due = [-30.0, *(0.01 * number for number in range(19))]
    with answering(Server(together=20)) as server:
        done = open_load(server.server_port, "/together", numbered(20), due, num_connections=2)
        assert sorted(map(int, server.bodies)) == list(range(20))
    assert (len(done.latencies_seconds), done.num_refused, done.num_failed) == (20, 0, 0)
    assert [latency >= 30 for latency in done.latencies_seconds] == [True, *[False] * 19]
    assert [late >= 30 for late in done.late_seconds] == [True, *[False] * 19]
    assert done.seconds >= due[-1]


def test_the_open_loop_counts_waiting_during_a_stall_and_the_closed_loop_misses_it() -> None:
    """No coordinated omission: the median is that of the requests in the stall, not that of the requests after it."""
    due = [0.01 * number for number in range(20)]
    with answering(Server()) as server:
        done = open_load(server.server_port, "/stall", numbered(20), due, num_connections=2)
    for one, moment in zip(done.latencies_seconds, due, strict=True):
        assert one >= STALL_SECONDS - moment
    with answering(Server()) as server:
        coordinated = load(server.server_port, "/stall", numbered(20), 1)
    assert max(coordinated.latencies_seconds) >= STALL_SECONDS
    assert coordinated.milliseconds(50) < done.milliseconds(50)


def test_refusals_and_failures_are_counted_separately_and_not_as_latencies() -> None:
    with answering(Server()) as server:
        done = open_load(server.server_port, "/mixed", numbered(8), [0.0] * 8, num_connections=2)
        assert (len(done.latencies_seconds), done.num_refused, done.num_failed) == (2, 2, 4)
    with answering(Server()) as server, pytest.raises(RuntimeError, match="of 1 requests none was answered"):
        open_load(server.server_port, "/stall", [b"1"], [0.0], num_connections=1, patience_seconds=0.05)


def test_a_comparison_reports_both_loops_and_both_sides_get_the_same_arrival_times(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_port = {1: 200, 2: 40, 3: 100}  # requests/s
    waits = {1: 0.5, 2: 0.3, 3: 0.6}  # seconds: the fastest set-up does not have the lowest p99
    sent: list[tuple[int, tuple[float, ...]]] = []
    draws: list[tuple[int, bytes]] = []

    def load(port: int, path: str, bodies: Any, at_once: int) -> Any:
        draws.append((port, bodies[0]))
        return Load(len(bodies) / of_port[port], (waits[port],) * len(bodies))

    def open_load(port: int, path: str, bodies: Any, due_seconds: tuple[float, ...], *, num_connections: int) -> Any:
        sent.append((port, due_seconds))
        draws.append((port, bodies[0]))
        return Load(1.0, (0.1 * port,) * len(bodies), port, 2 * port, (0.001,))

    monkeypatch.setattr(serving, "load", load)
    monkeypatch.setattr(serving, "open_load", open_load)
    monkeypatch.setattr(serving, "mixed_texts", lambda number, draw: [f"{draw}"] * number)
    serving.compare("serve_http_fastapi", "/embed", 50, 2, 1, {"threads": 2, "processes": 3}, facts={})
    line = json.loads(capsys.readouterr().out)
    assert (line["ratio"], line["ours_p95_ms"], line["open_arrivals_per_second"]) == (2.0, 500.0, 70.0)
    assert [port for port, _ in sent] == [1, 3, 3, 1]
    for side in (1, 3):
        assert [body for port, body in draws if port == side] == [b'{"inputs": ["%d"]}' % draw for draw in range(5)]
    assert sent[0][1] == sent[1][1] == arrivals(70.0, 50, 0)
    assert sent[2][1] == sent[3][1] == arrivals(70.0, 50, 1)
    assert (line["open_ours_p50_ms"], line["open_processes_p99_ms"]) == (100.0, 300.0)
    counts = ("open_ours_refused", "open_processes_failed", "open_ours_sent_late_at_most_ms")
    assert [line[name] for name in counts] == [2, 12, 1]
    assert (line["closed_p99_ms_ours"], line["closed_p99_ms_theirs"], line["closed_p99_is_lower"]) == (500, 300, False)
    assert (line["open_p99_ms_ours"], line["open_p99_ms_theirs"], line["open_p99_is_lower"]) == (100, 300, True)
