"""`clozeline serve` as a process of its own starts, answers, says why it cannot start, and ends on a signal and
with a worker. The line that it prints is one that its own models answer."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, models

from clozeline.inference.package import load
from clozeline.inference.tokenization import TextTokenizer
from clozeline.registry.versions import Registry
from clozeline.system.workspace import Workspace
from tests.make.packages import write_encoder
from tests.make.stores import ENCODER, write_registry
from tests.serving.conftest import Hosted, Serve, wait_until

KEY = "one-key-of-a-team-1234"
ONE_THREAD = ("--port", "0", "--threads", "1")
# Five micro-batches.
LONG = {"inputs": ["the list " * 30] * 30}


def ended(serve: Serve, number: signal.Signals | None = None) -> tuple[int, str, str]:
    """End the server by a signal, or wait for it; return its exit code, stdout and stderr."""
    if number:
        serve.process.send_signal(number)
    code, stdout, stderr = serve.end()
    assert "Traceback" not in stderr
    return code, stdout, stderr


def address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def pasted(serve: Serve) -> Any:
    """Run the example line that the server prints in a shell, and return the answer."""
    line = next(line for line in serve.told.splitlines() if "curl" in line)
    told = subprocess.run(["bash", "-c", line.split("Try")[1]], capture_output=True, text=True, check=True).stdout
    return json.loads(told)


def test_the_server_serves_all_of_dist_by_a_worker_per_core_until_a_signal_and_exits_0(dist: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:1]
    serve = Serve(dist.parent, "--port", "0", before=f"import os; os.sched_setaffinity(0, {cores})\n")
    url = serve.url()
    assert url.startswith("http://127.0.0.1:")
    with httpx.Client(base_url=url, trust_env=False) as client:
        assert client.get("/health/ready").status_code == 200
        assert [model["name"] for model in client.get("/models").json()["models"]] == ["encoder", "library"]
        client.post("/embed", json={"inputs": ["a b c d e f g h"] * 64}).raise_for_status()
        assert "clozeline_workers 1.0" in client.get("/metrics").text
    # One worker per core, the event loop, and the idle threads of the loader and uvloop, but none of ONNX Runtime.
    assert len(threads_of(serve.process)) <= 1 + 6
    assert {"score", "token_str"} <= set(pasted(serve)[0])
    body = json.dumps({"inputs": ["the [MASK] of the list " * 8] * 256, "parameters": {"top_k": 40}}).encode()
    head = "POST /fill-mask HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
    with socket.create_connection(address(url), timeout=30) as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode())
        assert connection.recv(1024).startswith(b"HTTP/1.1 100")  # the application waits for the body
        serve.process.send_signal(signal.SIGTERM)
        connection.sendall(body)
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert len(json.loads(answer.split(b"\r\n\r\n", 1)[1])) == 256
    code, stdout, _ = ended(serve)
    assert code == 0
    assert "LOADED []" in stdout
    socket.create_server(address(url)).close()


def threads_of(process: subprocess.Popen[str]) -> list[Path]:
    return list(Path(f"/proc/{process.pid}/task").iterdir())


def processor_seconds(process: subprocess.Popen[str]) -> float:
    """Return the processor seconds that all threads of the process have used so far."""
    user, system = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def waited_seconds(process: subprocess.Popen[str]) -> float:
    """Return the seconds that the threads of the process have waited for a core."""
    return sum(int((thread / "schedstat").read_text().split()[1]) for thread in threads_of(process)) / 1e9


OPEN_IT_BARELY = """
import sys
import numpy, onnxruntime, starlette.applications, tokenizers, uvicorn
onnxruntime.InferenceSession(sys.argv[1])
"""


def bare_seconds(graph: Path) -> float:
    """Return the processor seconds for importing a server's libraries and opening the graph, without our code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", OPEN_IT_BARELY, str(graph)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_minilm_sized_model_starts_within_eight_times_its_bare_load_time(tmp_path: Path) -> None:
    """Start-up, with both graphs timed, takes at most eight times `bare_seconds`, in processor and in wall-clock time.

    The wall-clock time leaves out waiting for cores that other processes used.
    """
    write_encoder(tmp_path / "encoder", num_layers=5, width=2048)
    graph = tmp_path / "encoder" / "model.onnx"
    assert graph.stat().st_size > 80 * 2**20  # MiniLM's graph has 86 MiB
    bare = max(bare_seconds(graph) for _ in range(2))
    started = time.monotonic()
    serve = Serve(tmp_path, "encoder", "--port", "0")
    serve.url()
    seconds = time.monotonic() - started
    worked, waited = processor_seconds(serve.process), waited_seconds(serve.process)
    assert ended(serve, signal.SIGTERM)[0] == 0
    assert worked <= 8 * bare
    assert seconds - waited <= 8 * bare


def test_champions_of_the_projects_own_registry_are_served_and_followed_without_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write_registry(tmp_path)
    serve = Serve(tmp_path, *ONE_THREAD, "--watch", "0.05", "--host", "0.0.0.0")
    with httpx.Client(base_url=serve.url(), trust_env=False) as client:
        [model] = client.get("/models").json()["models"]
        assert (model["name"], model["version"]) == (ENCODER, "2")
        Registry.open(Workspace(tmp_path).defaults()["MLFLOW_TRACKING_URI"]).roll_back(ENCODER)
        wait_until(lambda: client.post("/embed", json={"inputs": "a"}).headers["x-model-version"] == "1")
    code, stdout, stderr = ended(serve, signal.SIGTERM)
    assert code == 0
    assert "LOADED []" in stdout
    assert "Anyone who can reach 0.0.0.0 can use the models" in stderr


def test_a_server_for_other_machines_logs_by_utc_and_answers_only_to_allowed_names_and_keys(
    dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    keys = tmp_path / "the team's keys"
    keys.write_text(f"\n  \n{KEY}\nanother-key-of-it-5678\n", encoding="utf-8")
    options = ("--host", "0.0.0.0", "--allowed-host", "box.lan", "--api-keys-file", str(keys))
    before = datetime.now(UTC) - timedelta(milliseconds=1)  # a log line has only milliseconds
    serve = Serve(dist.parent, *ONE_THREAD, *options)
    url = serve.url()
    assert url.startswith("http://127.0.0.1:")
    assert {"score", "token_str"} <= set(pasted(serve)[0])
    assert KEY not in serve.told
    asked = [({"host": "box.lan"}, 401), ({"host": "other.lan"}, 421), ({"host": "box.lan", "x-api-key": KEY}, 200)]
    for headers, status in asked:
        assert httpx.get(f"{url}/models", headers=headers, trust_env=False).status_code == status
    code, _, stderr = ended(serve, signal.SIGINT)
    assert code == 0
    moment, _, line = stderr.splitlines()[-1].partition(" ")
    assert (moment.endswith("Z"), line.startswith("GET /models 200")) == (True, True)
    assert before <= datetime.fromisoformat(moment) <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("dist/encoder", "model.int8.onnx is not the file that was exported"),
        (f"models:/{ENCODER}@champion", "MLFLOW_TRACKING_URI="),
    ],
)
def test_a_server_without_a_usable_model_ends_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str, told: str
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write_encoder(tmp_path / "dist" / "encoder")
    graph = tmp_path / "dist" / "encoder" / "model.int8.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"?")
    before = list(tmp_path.rglob("*"))
    code, stdout, stderr = ended(Serve(tmp_path, "--port", "0", argument))
    assert (code, told in stderr, "URL" in stdout) == (4, True, False), stderr
    assert list(tmp_path.rglob("*")) == before


def test_a_port_in_use_is_reported_with_what_to_do(dist: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, stderr = ended(Serve(dist.parent, "--port", port))
    assert (code, f"cannot listen on 127.0.0.1 port {port}" in stderr, "--port 0" in stderr) == (2, True, True)


def panic(*given: object, **options: object) -> None:
    """Make the Rust code of tokenizers panic: the error that it raises is not an `Exception`."""
    Tokenizer(models.WordLevel({"a": 0}, "a")).encode("a").truncate(1, stride=1)


@pytest.mark.parametrize(
    ("method", "path", "text"),
    [("tokenize", "/classify", "a"), ("tokenize", "/classify", "a " * 4_096), ("token_text", "/fill-mask", "[MASK]")],
    ids=["where it arrives", "in the thread", "during inference"],
)
def test_a_tokenizer_panic_is_reported_as_an_internal_fault_and_the_worker_continues(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch, method: str, path: str, text: str
) -> None:
    with hosted() as (client, _):
        with monkeypatch.context() as patched:
            patched.setattr(TextTokenizer, method, panic)
            answer = client.post(path, json={"inputs": text, "truncate": True})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert client.post(path, json={"inputs": "[MASK]"}).status_code == 200


def test_loading_a_model_starts_no_threads(dist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # as the server sets it
    before = len(list(Path("/proc/self/task").iterdir()))
    load(dist / "library").tokenize(["a", "b"] * 100)
    assert len(list(Path("/proc/self/task").iterdir())) == before


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


# A server, its URL, and the file that holds its micro-batches as long as it exists.
Held = tuple[Serve, str, Path]


@pytest.fixture
def held(dist: Path, tmp_path: Path) -> Iterator[Held]:
    """Server whose shutdown waits only for deadlines. It runs micro-batches to start; from now on they are held."""
    gate = tmp_path / "held"
    server = Serve(dist.parent, *ONE_THREAD, before=HOLDING.format(held=str(gate)))
    url = server.url()
    gate.touch()
    yield server, url, gate
    server.process.kill()
    server.process.communicate()


def is_stopping(url: str) -> bool:
    try:
        socket.create_connection(address(url), timeout=60).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_stopping_server_answers_queued_requests_until_their_deadline_and_does_not_wait_for_an_unfinished_one(
    held: Held,
) -> None:
    server, url, gate = held
    unfinished = socket.create_connection(address(url))
    unfinished.sendall(b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{")
    with unfinished, httpx.Client(base_url=url, trust_env=False) as client, ThreadPoolExecutor(4) as clients:
        bodies = [{"inputs": "a " * num_words} for num_words in (60, 40, 25, 12)]  # each runs alone
        accepted = [clients.submit(client.post, "/embed", json=body, timeout=60) for body in bodies]
        wait_until(lambda: 'clozeline_tokenize_seconds_count{model="encoder"} 4.0' in client.get("/metrics").text)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_stopping(url))
        time.sleep(1)  # longer than it waits for bodies and for clients that read
        assert not any(answer.done() for answer in accepted)
        gate.unlink()
        assert [answer.result().status_code for answer in accepted] == [200] * 4
        assert ended(server)[0] == 0


def test_a_second_signal_drops_accepted_requests_and_says_so(held: Held) -> None:
    server, url, gate = held
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client, ThreadPoolExecutor(1) as clients:
        accepted = clients.submit(client.post, "/embed", json=LONG)
        wait_until(lambda: "clozeline_queue_tokens 0.0" not in client.get("/metrics").text)
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: is_stopping(url))  # two signals before it hears of one would be one
        server.process.send_signal(signal.SIGINT)
        answer = accepted.result()
        gate.unlink()
    assert (answer.status_code, answer.headers["connection"]) == (503, "close")
    assert answer.json()["error"].startswith("the server is stopping")
    assert ended(server)[0] == 130


def test_an_ended_worker_stops_the_server_so_that_it_is_restarted(dist: Path) -> None:
    broken = "import clozeline.inference.language as e\ndef end(*given): raise SystemExit\ne.OpenEncoder.rows = end\n"
    serve = Serve(dist.parent, *ONE_THREAD, before=broken)
    assert httpx.post(f"{serve.url()}/embed", json={"inputs": "a"}, trust_env=False).status_code == 500
    code, _, stderr = serve.end()
    assert code == 75
    assert "clozeline-worker-0 ended" in stderr
