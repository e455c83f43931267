"""Runs a side in a process of its own if its packages conflict with the project's, and measures it there.

Each call is pickled: the function and its arguments. So this file, which has their sides too (sentence-transformers and
optimum with ONNX Runtime, and the usual server around them), imports nothing of the project.

B texts of a batch, L tokens of the longest, V vocabulary.
"""

import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np

BENCHMARKS = Path(__file__).parents[1]
# INT8 presets of sentence-transformers for x86; the machine decides which of them is faster.
PRESETS = {"avx2": "model_quint8_avx2.onnx", "avx512_vnni": "model_qint8_avx512_vnni.onnx"}
Ask = Callable[[Sequence[str]], Any]


def process_with(packages: Path) -> Executor:
    """Return a process that finds the packages of a folder before those of the project's environment."""
    spawn = get_context("spawn")
    return ProcessPoolExecutor(1, spawn, initializer=_find_first, initargs=(str(packages), str(BENCHMARKS)))


def _find_first(*folders: str) -> None:
    sys.path[:0] = folders
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # stdout is for the line


@dataclass(frozen=True)
class There:
    """An object that the other process opens on first use."""

    process: Executor
    ask: Ask

    def __call__(self, texts: Sequence[str]) -> Any:
        return self.process.submit(self.ask, texts).result()


def measured(clock: Callable[..., Any], side: Ask, *arguments: Any, **named: Any) -> Any:
    """Return `clock`'s measurement of `side`, taken in its own process, without the transfer."""
    if isinstance(side, There):
        return side.process.submit(clock, side.ask, *arguments, **named).result()
    return clock(side, *arguments, **named)


def _seconds(ask: Ask, texts: Sequence[str]) -> float:
    started = time.perf_counter()
    ask(texts)
    return time.perf_counter() - started


def texts_per_second(ask: Ask, texts: Sequence[str], *, in_a_call: int) -> float:
    """Return the texts per second of consecutive calls with `in_a_call` texts each."""
    started = time.perf_counter()
    for at in range(0, len(texts), in_a_call):
        ask(texts[at : at + in_a_call])
    return len(texts) / (time.perf_counter() - started)


def median_milliseconds(ask: Ask, texts: Sequence[str]) -> float:
    """Return the median duration of calls with one text each."""
    return 1000 * median(_seconds(ask, [text]) for text in texts)


# `tokenizers` reads it at each call.
VARIABLE = "TOKENIZERS_PARALLELISM"
_TRIES = 3


def settings(in_parallel: bool, num_threads: int) -> dict[str, str]:
    """Return the environment of a process whose tokenizer uses `num_threads` threads, or only the calling thread.

    The number is fixed as soon as the first batch is spread over threads.
    """
    return {VARIABLE: str(in_parallel).lower(), "RAYON_NUM_THREADS": str(num_threads)}


def at_its_best(side: Ask, texts: Sequence[str]) -> tuple[Ask, bool]:
    """Return `side` with the faster tokenizer setting for `texts`, and whether that setting spreads its batches."""
    in_parallel = measured(_is_faster_in_parallel, side, texts)
    if isinstance(side, There):
        return replace(side, ask=_Tokenizing(side.ask, in_parallel)), in_parallel
    return _Tokenizing(side, in_parallel), in_parallel


def _is_faster_in_parallel(ask: Ask, texts: Sequence[str]) -> bool:
    ways = [_Tokenizing(ask, in_parallel) for in_parallel in (False, True)]
    for way in ways:
        way(texts)
    alone, in_parallel = zip(*([_seconds(way, texts) for way in ways] for _ in range(_TRIES)), strict=True)
    return min(in_parallel) < min(alone)


@dataclass(frozen=True)
class _Tokenizing:
    """A side whose tokenizer has this setting during each call only."""

    ask: Ask
    in_parallel: bool

    def __call__(self, texts: Sequence[str]) -> Any:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(self.in_parallel).lower()
        try:
            return self.ask(texts)
        finally:
            del os.environ[VARIABLE]
            os.environ.update({VARIABLE: before} if before else {})


@dataclass(frozen=True)
class OnnxEmbedder:
    """`SentenceTransformer.encode` with `backend="onnx"`: its own sorting, batches of 32, one session."""

    folder: Path
    file: str
    num_threads: int

    def __call__(self, texts: Sequence[str]) -> Any:
        """The vectors, [T, H]."""
        return _opened(self).encode(list(texts), normalize_embeddings=True, show_progress_bar=False)


@cache
def _opened(embedder: OnnxEmbedder) -> Any:
    import torch

    torch.set_num_threads(embedder.num_threads)
    how = {"file_name": f"onnx/{embedder.file}", "provider": "CPUExecutionProvider"}
    how["session_options"] = _session_options(embedder.num_threads)
    theirs = importlib.import_module("sentence_transformers")
    return theirs.SentenceTransformer(str(embedder.folder), backend="onnx", model_kwargs=how)


def _session_options(num_threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    return options


def export_embedder(trained: Path, out: Path) -> None:
    """Export the model in the folder `trained` in fp32 and in both INT8 presets."""
    theirs = importlib.import_module("sentence_transformers")
    options = {"export": True, "provider": "CPUExecutionProvider"}
    model = theirs.SentenceTransformer(str(trained), backend="onnx", model_kwargs=options)
    model.save_pretrained(str(out))
    for preset in PRESETS:
        theirs.export_dynamic_quantized_onnx_model(model, preset, str(out))


def export_full_logits(masked: Path, out: Path) -> None:
    """Export the model in the folder `masked`, with the logits of every token, in fp32 and in both INT8 presets."""
    from optimum.onnxruntime import ORTModelForMaskedLM, ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig
    from transformers import AutoTokenizer

    model = ORTModelForMaskedLM.from_pretrained(masked, export=True)
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(masked).save_pretrained(out)
    for preset, file in PRESETS.items():
        config = getattr(AutoQuantizationConfig, preset)(is_static=False)
        suffix = file.removeprefix("model_").removesuffix(".onnx")
        ORTQuantizer.from_pretrained(model).quantize(config, out, file_suffix=suffix)


_BATCH_TEXTS = 32


class FullLogits:
    """The stock graph, asked with more care than `transformers.pipeline` takes: texts sorted by length, in batches of
    32, no torch on the way, and only the logits of the masks are sorted.
    """

    def __init__(self, folder: Path, file: str, num_threads: int) -> None:
        import onnxruntime
        from transformers import AutoTokenizer

        options, providers = _session_options(num_threads), ["CPUExecutionProvider"]
        self._session: Any = onnxruntime.InferenceSession(str(folder / file), options, providers=providers)
        self._inputs = [one.name for one in self._session.get_inputs()]
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def fill(self, texts: Sequence[str], top_k: int) -> list[list[int]]:
        """Return for each text the likeliest tokens for its one mask, best first."""
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        found: dict[int, list[int]] = {}
        for at in range(0, len(order), _BATCH_TEXTS):
            numbers = order[at : at + _BATCH_TEXTS]
            found |= dict(zip(numbers, self._batch([texts[number] for number in numbers], top_k), strict=True))
        return [found[number] for number in range(len(texts))]

    def _batch(self, texts: list[str], top_k: int) -> list[list[int]]:
        inputs = self._tokenizer(texts, padding=True, truncation=True, return_tensors="np")
        (logits_BLV,) = self._session.run(["logits"], {name: inputs[name].astype(np.int64) for name in self._inputs})
        logits_BV = logits_BLV[inputs["input_ids"] == self._tokenizer.mask_token_id]
        best_BK = np.argpartition(logits_BV, -top_k, axis=1)[:, -top_k:]
        order_BK = np.argsort(-np.take_along_axis(logits_BV, best_BK, 1), axis=1)
        tokens: list[list[int]] = np.take_along_axis(best_BK, order_BK, 1).tolist()
        return tokens


def create_app() -> Any:
    """Return the usual hand-written server: FastAPI, and sentence-transformers with an INT8 graph.

    SENTENCE_MODEL, SENTENCE_FILE and SENTENCE_THREADS say what it serves.
    """
    from fastapi import Body, FastAPI
    from fastapi.responses import JSONResponse, Response

    model, file, num_threads = (os.environ[f"SENTENCE_{name}"] for name in ("MODEL", "FILE", "THREADS"))
    embedder = OnnxEmbedder(Path(model), file, int(num_threads))
    embedder(["warm"])
    app = FastAPI()

    @app.get("/health")
    async def health() -> str:
        return "ready"

    # `async`: in threads, concurrent calls of one tokenizer of transformers fail with "Already borrowed".
    @app.post("/embed")
    async def embed(inputs: Annotated[list[str], Body(embed=True)]) -> Response:
        return JSONResponse(embedder(inputs).tolist())

    return app
