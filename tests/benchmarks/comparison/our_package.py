"""The serving benchmarks in process. Our side: the scheduler of the server and its workers, without HTTP.

Beside it, which graph of ours is timed, and whether the gates of params.yaml allow it to be served.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clozeline.exporting.ladder import checks
from clozeline.inference.language import Embedder, OpenEncoder
from clozeline.inference.open_model import AnyQuestion
from clozeline.inference.package import load
from clozeline.params.delivery import ExportParams
from clozeline.records.package import Manifest, QuantizationScheme, Rung, read_manifest
from clozeline.serving.admission import Admission
from clozeline.serving.queue import Lane, Ticket
from clozeline.serving.scheduler import BatchWorkers, Scheduler
from comparison.elsewhere import Ask, at_its_best, measured
from comparison.frame import BENCHMARKS, BestOf, Rounds, alternate
from comparison.sentences import Embeddings
from comparison.stages import params_tree

_LOG = logging.getLogger(__name__)
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


def verdict(package: Path) -> dict[str, Any]:
    """Return the JSON fields of our side: the served graph, its scheme, and every check with its limit.

    The limits are those of params.yaml, whatever `package` was exported with. Log a warning if the graph is an INT8
    graph that `make run` would not serve, or if it is fp32 because no INT8 scheme passed.
    """
    manifest = read_manifest(package)
    rung = judged(manifest)
    told = checks(rung, ExportParams.model_validate(params_tree({})["export"]).gates)
    is_int8 = manifest.served == "int8"
    if failed := [str(check) for check in told if not check.is_passed]:
        what = "INT8 IS TIMED THAT WOULD NOT BE SERVED" if is_int8 else "FP32 IS TIMED, NO INT8 SCHEME PASSED"
        _LOG.warning("%s: %s: %s", package, what, "; ".join(failed))
    return {
        "ours_precision": manifest.served,
        "ours_scheme": _short(rung.scheme) if is_int8 else None,
        "ours_int8_passes": not failed,
        "ours_int8_checks": [str(check) for check in told],
    }


def judged(manifest: Manifest) -> Rung:
    """Return the rung of the scheme that is served; if none is, the last rung that was tried."""
    served = [rung for rung in manifest.ladder if rung.scheme == manifest.quantization]
    return (served or manifest.ladder)[-1]


def _short(scheme: QuantizationScheme) -> dict[str, Any]:
    """Return the scheme with numbers of nodes instead of their names."""
    return {name: len(value) if isinstance(value, tuple) else value for name, value in scheme}


def at_their_best(setups: Mapping[str, Ask], texts: Sequence[str]) -> tuple[dict[str, Ask], dict[str, Any]]:
    """Return each set-up with the faster tokenizer setting for `texts`, and the JSON fields that say which it is."""
    best = {name: at_its_best(ask, texts) for name, ask in setups.items()}
    facts = {f"theirs_{name}_tokenizes_in_parallel": in_parallel for name, (_, in_parallel) in best.items()}
    return {name: ask for name, (ask, _) in best.items()}, facts


def in_turn(
    name: str,
    ours: Ask,
    theirs: Mapping[str, Ask],
    draws: Sequence[Sequence[str]],
    clock: Callable[..., float],
    **how: int,
) -> tuple[Rounds, BestOf]:
    """Measure ours and each set-up of theirs by `clock`, with other texts in each round; return rounds and set-ups."""
    benchmark = BENCHMARKS[name]

    def figure(side: Ask, number: int) -> float:
        return measured(clock, side, draws[number], **how)

    setups = {name: partial(figure, side) for name, side in theirs.items()}
    best = BestOf(setups, higher_is_better=benchmark.higher_is_better)
    return alternate(partial(figure, ours), best, len(draws), benchmark.unit), best
