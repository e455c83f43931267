"""The servers that are compared, each a process of its own on the loopback: ours, MLflow's, and one of FastAPI."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

from comparison.elsewhere import BENCHMARKS
from comparison.elsewhere import settings as tokenizer_settings
from comparison.sentences import FasterPreset, SentenceModels, onnx_packages, torch_model, torch_packages
from comparison.stages import KEPT

_START_SECONDS = 180
_STOP_SECONDS = 20


def ours(models: SentenceModels, num_threads: int) -> AbstractContextManager[int]:
    """Run `clozeline serve` with `num_threads` workers; gives its port."""
    command = ["-m", "clozeline", "serve", f"encoder={models.ours}", "--threads", str(num_threads), "--port"]
    return _running(command, "/health/ready", {})


def graph_of(port: int) -> dict[str, str]:
    """Return the precision that our server at `port` serves, and why: it times both precisions on its own machine."""
    with urlopen(f"http://127.0.0.1:{port}/models", timeout=5) as answer:
        (card,) = json.load(answer)["models"]
    return {"ours_precision": card["precision"], "ours_precision_reason": card["precision_reason"]}


def mlflow_serve(
    model: Path, num_processes: int, num_threads: int, *, in_parallel: bool = False
) -> AbstractContextManager[int]:
    """Run `mlflow models serve` on the MLflow model in the folder `model`; gives its port.

    Args:
        model: folder of the MLflow model.
        num_processes: number of processes that answer requests.
        num_threads: number of threads of each process.
        in_parallel: whether the tokenizer spreads a batch over these threads.
    """
    options = ["--env-manager", "local", "--workers", str(num_processes), "--host", "127.0.0.1", "--port"]
    command = ["-m", "mlflow", "models", "serve", "--model-uri", str(model), *options]
    settings = {
        "OMP_NUM_THREADS": str(num_threads),
        "PYTHONPATH": str(torch_packages()),
        **tokenizer_settings(in_parallel, num_threads),
    }
    return _running(command, "/ping", settings)


def fastapi(
    models: SentenceModels, num_processes: int, num_threads: int, chosen: FasterPreset
) -> AbstractContextManager[int]:
    """Run sentence_server.py with the preset that is faster on this machine; gives its port."""
    settings = {
        "SENTENCE_MODEL": str(models.theirs),
        "SENTENCE_FILE": chosen.file,
        "SENTENCE_THREADS": str(num_threads),
        "PYTHONPATH": os.pathsep.join([str(onnx_packages()), str(BENCHMARKS)]),
        **tokenizer_settings(chosen.in_parallel, num_threads),
    }
    application = ["-m", "uvicorn", "--factory", "comparison.sentence_server:create_app"]
    return _running([*application, "--workers", str(num_processes), "--port"], "/health", settings)


def our_mlflow_model(models: SentenceModels) -> Path:
    """Our package as `clozeline release` stores it: the same INT8 graph."""
    import mlflow

    from clozeline.registry import models as registry

    folder = _emptied("mlflow-ours")
    mlflow.pyfunc.save_model(
        folder,
        python_model=str(Path(registry.__file__).with_name("served_model.py")),
        artifacts={registry.PACKAGE: str(models.ours)},
        input_example=(["a text"], {"top_k": 5, "truncate": False}),
        pip_requirements=[],
    )
    return folder


def their_mlflow_model() -> Path:
    """The weights as MLflow's own flavor of sentence-transformers stores them: torch, fp32."""
    import mlflow.sentence_transformers

    folder = _emptied("mlflow-theirs")
    mlflow.sentence_transformers.save_model(torch_model(), folder, input_example=["a text"], pip_requirements=[])
    return folder


def _emptied(name: str) -> Path:
    folder = KEPT / "sentences" / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


@contextmanager
def _running(command: Sequence[str], health: str, settings: Mapping[str, str]) -> Iterator[int]:
    """Run `python COMMAND PORT`; yield the port once `health` answers 200."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", **settings}
    log = KEPT / "sentences" / f"server-{port}.log"
    with log.open("wb") as told:
        process = subprocess.Popen(
            [sys.executable, *command, str(port)], env=environment, stdout=told, stderr=told, start_new_session=True
        )
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not _answers(f"http://127.0.0.1:{port}{health}"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server does not answer; its exit code is {process.poll()}: see {log}")
                time.sleep(0.2)
            yield port
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its workers, which share its session
            process.wait()
    log.unlink()


def _answers(url: str) -> bool:
    with suppress(OSError), urlopen(url, timeout=5) as answer:
        return bool(answer.status == 200)
    return False
