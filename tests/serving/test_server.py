"""`clozeline serve` as a process of its own starts, answers, and says what is wrong if it cannot start.

A fault of the server gets an answer like any other: counted, logged, and with the security headers.
"""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, models

from clozeline.inference.language import OpenEncoder
from clozeline.inference.package import load
from clozeline.inference.tokenization import TextTokenizer
from clozeline.registry.versions import Registry
from clozeline.serving.access import SECURITY_HEADERS
from clozeline.serving.errors import KEYS_VARIABLE
from clozeline.system.workspace import Workspace
from tests.make.packages import write_encoder
from tests.make.stores import ENCODER, write_registry
from tests.serving.conftest import Hosted, Serve

KEY = "one-key-of-a-team-1234"


def threads_of(process: subprocess.Popen[str]) -> list[str]:
    """Return the names of the process's threads, as Linux truncates them."""
    return [file.read_text().strip() for file in Path(f"/proc/{process.pid}/task").glob("*/comm")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_server_serves_all_of_dist_until_a_signal_and_exits_0(serve: Serve, number: signal.Signals) -> None:
    url = serve.url()
    with httpx.Client(base_url=url, trust_env=False) as client:
        assert client.get("/health/ready").status_code == 200
        assert [model["name"] for model in client.get("/models").json()["models"]] == ["encoder", "library"]
        assert len(client.post("/fill-mask", json={"inputs": "the [MASK]"}).json()) == 5
        serve.process.send_signal(number)
        code, stdout, _ = serve.end()
    assert code == 0
    assert "LOADED []" in stdout
    host, port = url.removeprefix("http://").split(":")
    socket.create_server((host, int(port))).close()


def processor_seconds(process: subprocess.Popen[str]) -> float:
    """Return the processor seconds that all threads of the process have used so far."""
    user, system = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def waited_seconds(process: subprocess.Popen[str]) -> float:
    """Return the seconds that the threads of the process have waited for a core."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[1]) for file in tasks) / 1e9


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


@pytest.mark.parametrize("options", [[], ["--precision", "fp32"]], ids=["both graphs are timed", "one graph"])
def test_a_minilm_sized_model_starts_within_eight_times_its_bare_load_time(tmp_path: Path, options: list[str]) -> None:
    """Start-up takes at most eight times `bare_seconds`, in processor time and in wall-clock time.

    The wall-clock time leaves out waiting for cores that other processes used.
    """
    write_encoder(tmp_path / "encoder", num_layers=5, width=2048)
    graph = tmp_path / "encoder" / "model.onnx"
    assert graph.stat().st_size > 80 * 2**20  # MiniLM's graph has 86 MiB
    bare = max(bare_seconds(graph) for _ in range(2))
    started = time.monotonic()
    serve = Serve(tmp_path, "encoder", "--port", "0", *options)
    serve.url()
    seconds = time.monotonic() - started
    worked, waited = processor_seconds(serve.process), waited_seconds(serve.process)
    serve.process.send_signal(signal.SIGTERM)
    code, stdout, _ = serve.end()
    assert code == 0
    assert "LOADED []" in stdout
    assert worked <= 8 * bare
    assert seconds - waited <= 8 * bare


@pytest.fixture
def serve_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Server of the champions of the project's registry in `tmp_path`; it polls their aliases 20 times per second."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write_registry(tmp_path)
    server = Serve(tmp_path, "--port", "0", "--threads", "1", "--watch", "0.05")
    yield server
    server.process.kill()
    server.process.communicate()


def test_champions_of_the_projects_own_registry_are_served_and_followed_without_mlflow(
    serve_registry: Serve, tmp_path: Path
) -> None:
    with httpx.Client(base_url=serve_registry.url(), trust_env=False) as client:
        [model] = client.get("/models").json()["models"]
        assert (model["name"], model["version"]) == (ENCODER, "2")
        Registry.open(Workspace(tmp_path).defaults()["MLFLOW_TRACKING_URI"]).roll_back(ENCODER)
        _wait_for_version(client, "1")
    serve_registry.process.send_signal(signal.SIGTERM)
    code, stdout, _ = serve_registry.end()
    assert code == 0
    assert "LOADED []" in stdout


def _wait_for_version(client: httpx.Client, version: str) -> None:
    until = time.monotonic() + 60
    while client.post("/embed", json={"inputs": "a"}).headers["x-model-version"] != version:
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("num_cores", sorted({1, len(os.sched_getaffinity(0))}))
def test_the_server_has_a_worker_per_core_and_listens_only_on_loopback(dist: Path, num_cores: int) -> None:
    cores = sorted(os.sched_getaffinity(0))[:num_cores]
    serve = Serve(dist.parent, "--port", "0", before=f"import os; os.sched_setaffinity(0, {cores})\n")
    url = serve.url()
    assert url.startswith("http://127.0.0.1:")
    counts = httpx.get(f"{url}/metrics", trust_env=False).text
    assert f"clozeline_workers {num_cores}.0" in counts
    httpx.post(f"{url}/embed", json={"inputs": ["a b c d e f g h"] * 64}, trust_env=False).raise_for_status()
    # One worker per core, the event loop, and the idle threads of the loader and uvloop, but none of ONNX Runtime.
    assert len(threads_of(serve.process)) <= num_cores + 6
    serve.process.send_signal(signal.SIGTERM)
    assert serve.end()[0] == 0


def test_a_server_for_other_machines_warns_logs_by_utc_and_answers_only_to_allowed_names(
    dist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    serve = Serve(dist.parent, "--port", "0", "--host", "0.0.0.0", "--threads", "1", "--allowed-host", "box.lan")
    before = datetime.now(UTC) - timedelta(milliseconds=1)  # a log line has only milliseconds
    url = serve.url()
    assert url.startswith("http://127.0.0.1:")
    asked = [httpx.get(f"{url}/models", headers={"host": name}, trust_env=False) for name in ("box.lan", "other.lan")]
    httpx.post(f"{url}/embed", json={"inputs": "a"}, trust_env=False).raise_for_status()
    serve.process.send_signal(signal.SIGTERM)
    code, _, stderr = serve.end()
    assert (code, [answer.status_code for answer in asked]) == (0, [200, 421])
    assert "Anyone who can reach 0.0.0.0 can use the models" in stderr
    lines = [line.split(" ", 1) for line in stderr.splitlines()]
    said = [told.split(" ", 2)[:2] for _, told in lines]
    assert (said[0], said[-1]) == (["Anyone", "who"], ["POST", "/embed"])
    assert all(moment.endswith("Z") for moment, _ in lines)
    moments = [datetime.strptime(moment, "%Y-%m-%dT%H:%M:%S.%f%z") for moment, _ in lines]
    in_turn = [before, *moments, datetime.now(UTC)]
    assert in_turn == sorted(in_turn)


@pytest.mark.parametrize("place", ["nowhere", "variable", "file"])
def test_the_suggested_command_works_and_does_not_reveal_a_key(
    dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    options = []
    if place == "variable":
        monkeypatch.setenv(KEYS_VARIABLE, f" {KEY} , another-key-of-it-5678")
    if place == "file":
        file = tmp_path / "the team's keys"
        file.write_text(f"\n  \n{KEY}\nanother-key-of-it-5678\n", encoding="utf-8")
        options = ["--api-keys-file", str(file)]
    serve = Serve(dist.parent, "--port", "0", "--threads", "1", *options)
    try:
        url = serve.url()
        assert httpx.get(f"{url}/models", trust_env=False).status_code == (200 if place == "nowhere" else 401)
        assert {"score", "token_str"} <= set(pasted(serve)[0])
        assert KEY not in serve.told
    finally:
        serve.process.send_signal(signal.SIGTERM)
        serve.end()


def pasted(serve: Serve) -> Any:
    """Run the example line that the server prints in a shell, and return the answer."""
    line = next(line for line in serve.told.splitlines() if "curl" in line)
    told = subprocess.run(["bash", "-c", line.split("Try")[1]], capture_output=True, text=True, check=True).stdout
    return json.loads(told)


def test_a_port_in_use_is_reported_with_what_to_do(dist: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, stderr = Serve(dist.parent, "--port", port).end()
    assert code == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in stderr
    assert "--port 0" in stderr
    assert "Traceback" not in stderr


def damage(folder: Path) -> None:
    write_encoder(folder / "dist" / "encoder")
    graph = folder / "dist" / "encoder" / "model.int8.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"?")


@pytest.mark.parametrize(
    ("arguments", "prepare", "told"),
    [
        pytest.param([], None, "make run", id="an empty project"),
        pytest.param([f"models:/{ENCODER}@champion"], None, "MLFLOW_TRACKING_URI=", id="no registry"),
        pytest.param([], damage, "model.int8.onnx is not the file that was exported", id="a damaged model"),
    ],
)
def test_a_server_without_a_usable_model_ends_with_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    prepare: Callable[[Path], None] | None,
    told: str,
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if prepare:
        prepare(tmp_path)
    before = list(tmp_path.rglob("*"))
    code, stdout, stderr = Serve(tmp_path, "--port", "0", *arguments).end()
    assert (code, told in stderr, "Traceback" in stderr, "URL" in stdout) == (4, True, False, False), stderr
    assert list(tmp_path.rglob("*")) == before


@pytest.fixture
def broken(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A server whose encoder always fails."""

    def fail(*given: object) -> object:
        raise RuntimeError("insides of the graph")

    monkeypatch.setattr(OpenEncoder, "rows", fail)
    with hosted() as (client, _):
        yield client


def test_an_internal_fault_is_counted_and_logged_with_its_error(
    broken: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="clozeline.serving")
    assert broken.post("/embed", json={"inputs": "a"}).status_code == 500
    assert 'clozeline_requests_total{route="/embed",status="500"} 1.0' in broken.get("/metrics").text
    assert "POST /embed 500" in caplog.text
    (fault,) = (record for record in caplog.records if record.exc_info)
    assert fault.exc_info
    assert str(fault.exc_info[1]) == "insides of the graph"


def test_a_refusal_has_the_error_format_of_the_protocol_and_the_usual_headers(broken: httpx.Client) -> None:
    answer = broken.post("/v2/models/encoder/infer", json=INFER)
    assert (answer.status_code, set(answer.json())) == (500, {"error"})
    assert "insides" not in answer.text
    assert {name: answer.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS


def test_the_connection_stays_usable_after_a_fault(broken: httpx.Client) -> None:
    answer = broken.post("/embed", json={"inputs": "a"})
    assert answer.status_code == 500
    assert "connection" not in answer.headers  # a server that hangs up would send `connection: close`
    assert broken.get("/models").status_code == 200


INFER = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}


def panic() -> None:
    """Make the Rust code of tokenizers panic: the error that it raises is not an `Exception`."""
    Tokenizer(models.WordLevel({"a": 0}, "a")).encode("a").truncate(1, stride=1)


@pytest.mark.parametrize("text", ["a", "a " * 4_096], ids=["where it arrives", "in the thread"])
def test_a_tokenizer_panic_is_reported_as_an_internal_fault(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(TextTokenizer, "tokenize", lambda *given, **options: panic())
    with hosted() as (client, _):
        answer = client.post("/classify", json={"inputs": text, "truncate": True})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        monkeypatch.undo()
        assert client.post("/classify", json={"inputs": "a"}).status_code == 200


def test_a_panic_during_inference_is_reported_and_the_worker_continues(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextTokenizer, "token_text", lambda *given: panic())
    with hosted() as (client, _):
        answer = client.post("/fill-mask", json={"inputs": "a [MASK]"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert client.get("/health/live").status_code == 200


def test_loading_a_model_starts_no_threads(dist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # as the server sets it
    before = len(list(Path("/proc/self/task").iterdir()))
    load(dist / "library").tokenize(["a", "b"] * 100)
    assert len(list(Path("/proc/self/task").iterdir())) == before
