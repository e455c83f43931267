"""Texts of mixed lengths embedded in a second, against sentence-transformers with `backend="onnx"` in INT8.

all-MiniLM-L6-v2 on both sides, the same weights, in process, the same number of threads, nothing cached, one call that
does not count before. Ours is the scheduler of the server: the texts come as requests of 32 and are tokenized as they
come, while workers with one thread each run what is of nearly the same length. Theirs is `encode` of all texts with
its own sorting and batches of 32, one session with as many threads; of its two INT8 presets the better one counts.
The cosine says how near the two sides' embeddings are, and theirs in fp32 is what both are compared with.
"""

import argparse
import importlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from clozeline.inference.encoder import Encoder
from clozeline.inference.package import load
from clozeline.serving.scheduling.admission import Admission
from clozeline.serving.scheduling.scheduler import Scheduler
from clozeline.serving.scheduling.work import Lane, Ticket
from clozeline.serving.scheduling.workers import Workers
from comparison.alternation import Comparison, alternate, finish, report_progress
from comparison.machine import available_cores
from comparison.sentences import PRESETS, SentenceModels, mixed_texts, sentence_models

_REQUEST_TEXTS = 32
Embeddings = npt.NDArray[np.float32]


class Ours:
    """The scheduler and its workers over our package, without HTTP."""

    def __init__(self, models: SentenceModels, num_threads: int) -> None:
        model = load(models.ours, precision="int8")
        assert isinstance(model, Encoder)
        self._model = model
        self._settled = threading.Semaphore(0)
        no_limit = Admission(max_waiting_tokens=10**9, max_wait_seconds=1e9)
        self._scheduler = Scheduler(num_threads, self._settle, admission=no_limit)
        self._workers = Workers(self._scheduler, num_threads, lambda batch, seconds: None)

    def embed(self, texts: Sequence[str]) -> Embeddings:
        tickets = [self._submitted(texts[at : at + _REQUEST_TEXTS]) for at in range(0, len(texts), _REQUEST_TEXTS)]
        for _ in tickets:
            self._settled.acquire()
        return np.array([answer for ticket in tickets for answer in ticket.answers])

    def _submitted(self, texts: Sequence[str]) -> Ticket:
        question = self._model.embedding(texts, truncate=True)
        ticket = Ticket(Lane(self._model, question.output), question, self._scheduler.clock())
        self._scheduler.submit(ticket)
        return ticket

    def _settle(self, tickets: Sequence[Ticket]) -> None:
        self._settled.release(len(tickets))


def main() -> None:
    report_progress()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=512)
    chosen = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as the server has it; and tokenizers warn of our threads else
    num_threads, models, texts = available_cores(), sentence_models(), mixed_texts(chosen.texts)
    ours = Ours(models, num_threads).embed
    theirs = {preset: _theirs(models, num_threads, file) for preset, file in PRESETS.items()}
    exact = _theirs(models, num_threads, "model.onnx")(texts)
    facts = {f"cosine_with_fp32_{name}": _cosine(side(texts), exact) for name, side in {"ours": ours, **theirs}.items()}
    speeds: dict[str, list[float]] = {preset: [] for preset in theirs}

    def best_of_theirs(_: int) -> float:
        for preset, embed in theirs.items():
            speeds[preset].append(_speed(embed, texts))
        return max(speed[-1] for speed in speeds.values())

    rounds = alternate(lambda _: _speed(ours, texts), best_of_theirs, chosen.rounds, "texts/s")
    finish(
        Comparison(
            name="serve_embed_mixed",
            unit="texts/s",
            rounds=rounds,
            higher_is_better=True,
            goal=2.0,
            num_threads=num_threads,
            facts=facts | {"texts": len(texts)} | {f"theirs_{name}": speed for name, speed in speeds.items()},
        )
    )


def _theirs(models: SentenceModels, num_threads: int, file: str) -> Callable[[Sequence[str]], Embeddings]:
    import onnxruntime
    import torch

    torch.set_num_threads(num_threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    settings = {"file_name": f"onnx/{file}", "provider": "CPUExecutionProvider", "session_options": options}
    model: Any = importlib.import_module("sentence_transformers").SentenceTransformer(
        str(models.theirs), backend="onnx", model_kwargs=settings
    )
    return lambda texts: model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)


def _speed(embed: Callable[[Sequence[str]], Embeddings], texts: Sequence[str]) -> float:
    started = time.perf_counter()
    embed(texts)
    return len(texts) / (time.perf_counter() - started)


def _cosine(embeddings: Embeddings, exact: Embeddings) -> float:
    return round(float((embeddings * exact).sum(axis=1).mean()), 5)


if __name__ == "__main__":
    main()
