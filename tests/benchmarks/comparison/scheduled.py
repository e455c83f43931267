"""Our side of the serving benchmarks in process: the scheduler of the server and its workers, without HTTP."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clozeline.inference.language import Embedder, OpenEncoder
from clozeline.inference.open_model import AnyQuestion
from clozeline.inference.package import load
from clozeline.serving.admission import Admission
from clozeline.serving.queue import Lane, Ticket
from clozeline.serving.scheduler import BatchWorkers, Scheduler
from comparison.sentences import Embeddings

REQUEST_TEXTS = 32


class Ours:
    """Texts come as requests of 32 and are tokenized as they come, while workers with one thread each run them."""

    def __init__(self, package: Path, num_threads: int) -> None:
        model = load(package)
        assert isinstance(model, Embedder)
        self._model = model
        self._settled = threading.Semaphore(0)
        no_limit = Admission(max_waiting_tokens=10**9, max_wait_seconds=1e9)
        self._scheduler = Scheduler(num_threads, self._settle, admission=no_limit)
        self._workers = BatchWorkers(self._scheduler, num_threads, lambda batch, seconds: None)

    def embed(self, texts: Sequence[str]) -> Embeddings:
        """Return the vectors, [T, H]."""
        return np.array(self._answers(texts, lambda some: self._model.embedding(some, truncate=True)))

    def fill(self, texts: Sequence[str], top_k: int) -> list[list[int]]:
        """Return for each text the likeliest tokens for its one mask, best first."""
        model = self._model
        assert isinstance(model, OpenEncoder)
        answers = self._answers(texts, lambda some: model.filling(some, top_k=top_k, truncate=True))
        return [[word.token for word in words] for (words,) in answers]

    def _answers(self, texts: Sequence[str], asked: Callable[[Sequence[str]], AnyQuestion]) -> list[Any]:
        tickets = [self._submitted(asked(texts[at : at + REQUEST_TEXTS])) for at in range(0, len(texts), REQUEST_TEXTS)]
        for _ in tickets:
            self._settled.acquire()
        return [answer for ticket in tickets for answer in ticket.answers]

    def _submitted(self, question: AnyQuestion) -> Ticket:
        ticket = Ticket(Lane(self._model, question.output), question, self._scheduler.clock())
        self._scheduler.submit(ticket)
        return ticket

    def _settle(self, tickets: Sequence[Ticket]) -> None:
        self._settled.release(len(tickets))
