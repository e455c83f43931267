"""The loads of the HTTP benchmarks: when requests are sent, and from when their latency counts."""

import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from comparison import over_http
from comparison.load import Load, OpenLoad, arrivals, load, open_load

FOLDER = Path(__file__).parent
STALL_SECONDS = 0.5
TOGETHER = 20


class Server:
    """Server that answers after a while, and records the requests and how many waited at once.

    `/refused` is 503, `/wrong` is 400, `/cut` is no answer, `/mixed` refuses even bodies; `/stall` holds up every
    answer until STALL_SECONDS after the first request, `/together` until as many as `together` wait.
    """

    DELAY_SECONDS = 0.02

    def __init__(self, together: int = TOGETHER) -> None:
        self._together = threading.Barrier(together)

    def __enter__(self) -> Self:
        outer = self
        self.bodies: list[bytes] = []
        self.most_at_once = self._at_once = 0
        self._stalled_until: float | None = None
        self._lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with outer._counted(body):
                    outer._hold_up(self.path)
                if self.path == "/cut":
                    self.close_connection = True
                    return
                with suppress(ConnectionError):  # the client may have left
                    self.send_response(outer._status(self.path, body))
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _counted(self, body: bytes) -> "_Counted":
        with self._lock:
            self.bodies.append(body)
        return _Counted(self)

    def _hold_up(self, path: str) -> None:
        if path == "/together":
            self._together.wait(timeout=60)
        if path == "/stall":
            with self._lock:
                self._stalled_until = self._stalled_until or time.perf_counter() + STALL_SECONDS
            time.sleep(max(0.0, self._stalled_until - time.perf_counter()))
        else:
            time.sleep(self.DELAY_SECONDS)

    def _status(self, path: str, body: bytes) -> int:
        is_refused = path == "/refused" or (path == "/mixed" and int(body) % 2 == 0)
        return 503 if is_refused else 400 if path == "/wrong" else 200


class _Counted:
    """Context that counts one more waiting request."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def __enter__(self) -> None:
        with self._server._lock:
            self._server._at_once += 1
            self._server.most_at_once = max(self._server.most_at_once, self._server._at_once)

    def __exit__(self, *_: object) -> None:
        with self._server._lock:
            self._server._at_once -= 1


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_the_load_sends_each_body_once_over_n_clients_and_times_every_answer() -> None:
    with Server(together=4) as server:
        done = load(server.port, "/together", numbered(20), 4)
        assert sorted(map(int, server.bodies)) == list(range(20))
        assert server.most_at_once == 4
        assert len(done.latencies_seconds) == 20
        assert done.seconds >= 5 * Server.DELAY_SECONDS
        assert min(done.latencies_seconds) >= Server.DELAY_SECONDS
        assert done.requests_per_second == pytest.approx(20 / done.seconds)
        with pytest.raises(RuntimeError, match="503"):
            load(server.port, "/refused", [b"1"], 1)


def test_arrivals_depend_only_on_the_seed_and_scale_with_the_rate() -> None:
    due = arrivals(100.0, 2000, seed=3)
    assert due == arrivals(100.0, 2000, seed=3)
    assert due != arrivals(100.0, 2000, seed=4)
    assert np.allclose(arrivals(50.0, 2000, seed=3), 2 * np.array(due))
    assert arrivals(100.0, 10, seed=3) == due[:10]


@pytest.mark.parametrize("seed", range(5))
def test_arrivals_form_a_poisson_process(seed: int) -> None:
    """A Poisson process: arrivals come at the given rate, and the deviation of their gaps equals the mean gap."""
    gaps = np.diff([0.0, *arrivals(100.0, 4000, seed)])
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.01, rel=0.08)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.12)


def test_requests_are_sent_when_they_are_due_whether_or_not_others_are_answered() -> None:
    """The server answers no request before the last one is sent."""
    due = [0.01 * number for number in range(TOGETHER)]
    with Server() as server:
        done = open_load(server.port, "/together", numbered(TOGETHER), due, num_connections=2)
        assert sorted(map(int, server.bodies)) == list(range(TOGETHER))
        assert server.most_at_once == TOGETHER
    assert len(done.latencies_seconds) == len(done.late_seconds) == TOGETHER
    assert (done.num_refused, done.num_failed) == (0, 0)
    assert done.seconds >= due[-1]


def test_the_open_loop_counts_waiting_during_a_stall_and_the_closed_loop_misses_it() -> None:
    """No coordinated omission: the median is that of the requests in the stall, not that of the requests after it."""
    due = [0.01 * number for number in range(20)]
    with Server() as server:
        done = open_load(server.port, "/stall", numbered(20), due, num_connections=2)
    for one, moment in zip(done.latencies_seconds, due, strict=True):
        assert one >= STALL_SECONDS - moment
    with Server() as server:
        coordinated = load(server.port, "/stall", numbered(20), 1)
    assert max(coordinated.latencies_seconds) >= STALL_SECONDS
    assert coordinated.milliseconds(50) < done.milliseconds(50)


def test_latency_counts_from_the_time_a_request_was_due() -> None:
    """Delays of the client count too, and are reported."""
    with Server() as server:
        done = open_load(server.port, "/some", numbered(3), [-30.0, -30.0, 0.0], num_connections=1)
    assert [latency >= 30 for latency in done.latencies_seconds] == [True, True, False]
    assert [late >= 30 for late in done.late_seconds] == [True, True, False]


def test_refusals_and_failures_are_counted_separately_and_not_as_latencies() -> None:
    due = [0.0] * 10
    with Server() as server:
        done = open_load(server.port, "/mixed", numbered(10), due, num_connections=2)
        assert (len(done.latencies_seconds), done.num_refused, done.num_failed) == (5, 5, 0)
        for path, told in (("/refused", "503"), ("/wrong", "400"), ("/cut", "None")):
            with pytest.raises(RuntimeError, match=f"of 2 requests none was answered.*{told}"):
                open_load(server.port, path, numbered(2), due[:2], num_connections=2)
        with pytest.raises(RuntimeError, match="none was answered"):
            open_load(server.port, "/stall", [b"1"], [0.0], num_connections=1, patience_seconds=0.05)


def test_a_comparison_reports_both_loops_and_both_sides_get_the_same_arrival_times(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO")
    of_port = {1: 200, 2: 40, 3: 100, 4: 10}  # requests/s
    waits = {1: 0.5, 2: 0.3, 3: 0.6, 4: 0.1}  # seconds: the fastest set-up does not have the lowest p99
    sent: list[tuple[int, tuple[float, ...]]] = []
    draws: list[tuple[int, bytes]] = []

    def load(port: int, path: str, bodies: Any, at_once: int) -> Any:
        draws.append((port, bodies[0]))
        return Load(len(bodies) / of_port[port], (waits[port],) * len(bodies))

    def open_load(port: int, path: str, bodies: Any, due_seconds: tuple[float, ...], *, num_connections: int) -> Any:
        sent.append((port, due_seconds))
        draws.append((port, bodies[0]))
        return OpenLoad(1.0, (0.1 * port,) * len(bodies), port, 2 * port, (0.001,))

    monkeypatch.setattr(over_http, "load", load)
    monkeypatch.setattr(over_http, "open_load", open_load)
    monkeypatch.setattr(over_http, "mixed_texts", lambda number, draw: [f"{draw}"] * number)
    asked = over_http.Requests("/embed", 50, 2)
    over_http.compare("serve_http_fastapi", asked, 1, {"threads": 2, "processes": 3}, facts={}, beside={"other": 4})
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
    assert "open_threads_p50_ms" not in line
    assert (line["closed_p99_ms_ours"], line["closed_p99_ms_theirs"], line["closed_p99_is_lower"]) == (500, 300, False)
    assert (line["open_p99_ms_ours"], line["open_p99_ms_theirs"], line["open_p99_is_lower"]) == (100, 300, True)
    table = [message.split() for message in caplog.messages if " closed " in message or " open " in message]
    (row,) = (row for row in table if row[:2] == ["processes", "open"])
    assert [float(cell) for cell in row[2:7]] == [300, 300, 300, 6, 12]
    assert len(table) == 6
