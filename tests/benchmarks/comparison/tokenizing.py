"""Makes the other side's tokenizer spread a batch over the cores if that is faster."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from comparison.elsewhere import Ask, There, measured

VARIABLE = "TOKENIZERS_PARALLELISM"
"""`tokenizers` reads it at each call."""
_NUM_THREADS = "RAYON_NUM_THREADS"
_TRIES = 3


def settings(in_parallel: bool, num_threads: int) -> dict[str, str]:
    """Return the environment of a process whose tokenizer uses `num_threads` threads, or only the calling thread."""
    return {VARIABLE: str(in_parallel).lower(), _NUM_THREADS: str(num_threads)}


def tokenize_as_the_server(num_threads: int) -> None:
    """Make our tokenizer run in the calling thread, as in the server; a side that `at_its_best` runs in parallel gets
    `num_threads` threads.

    Call this before the first batch is spread over threads, because their number is fixed from then on.
    """
    os.environ.update(settings(False, num_threads))


def at_its_best(side: Ask, texts: Sequence[str]) -> tuple[Ask, bool]:
    """Return `side` with the faster tokenizer setting for `texts`, and whether that setting spreads its batches."""
    in_parallel = measured(_is_faster_in_parallel, side, texts)
    return tokenizing(side, in_parallel), in_parallel


def tokenizing(side: Ask, in_parallel: bool) -> Ask:
    """Return `side` with its tokenizer set to `in_parallel` during each call only."""
    if isinstance(side, There):
        return replace(side, ask=_Tokenizing(side.ask, in_parallel))
    return _Tokenizing(side, in_parallel)


def _is_faster_in_parallel(ask: Ask, texts: Sequence[str]) -> bool:
    seconds: dict[bool, list[float]] = {False: [], True: []}
    ways = {in_parallel: _Tokenizing(ask, in_parallel) for in_parallel in seconds}
    for way in ways.values():
        way(texts)
    for _ in range(_TRIES):
        for in_parallel, way in ways.items():
            started = time.perf_counter()
            way(texts)
            seconds[in_parallel].append(time.perf_counter() - started)
    return min(seconds[True]) < min(seconds[False])


@dataclass(frozen=True)
class _Tokenizing:
    ask: Ask
    in_parallel: bool

    def __call__(self, texts: Sequence[str]) -> Any:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(self.in_parallel).lower()
        try:
            return self.ask(texts)
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before
