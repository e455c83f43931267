"""Whether the other side's tokenizer spreads a batch over the cores, as it is faster."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

VARIABLE = "TOKENIZERS_PARALLELISM"
"""`tokenizers` reads it at each call."""
_NUM_THREADS = "RAYON_NUM_THREADS"
_TRIES = 3

Answers = TypeVar("Answers")
Ask = Callable[[Sequence[str]], Answers]


def settings(in_parallel: bool, num_threads: int) -> dict[str, str]:
    """The environment of a process whose tokenizer has so many threads, or the one that calls it."""
    return {VARIABLE: str(in_parallel).lower(), _NUM_THREADS: str(num_threads)}


def tokenize_as_the_server(num_threads: int) -> None:
    """Ours tokenizes in the thread that calls, while workers run; what `at_its_best` lets have more has these threads.

    Said before the first batch is spread over threads: later nothing changes how many there are.
    """
    os.environ.update(settings(False, num_threads))


def at_its_best(ask: Ask[Answers], texts: Sequence[str]) -> tuple[Ask[Answers], bool]:
    """`ask` with a tokenizer that spreads its batches or does not, whichever answers `texts` sooner; and which."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    ways = {in_parallel: tokenizing(ask, in_parallel) for in_parallel in seconds}
    for way in ways.values():
        way(texts)
    for _ in range(_TRIES):
        for in_parallel, way in ways.items():
            started = time.perf_counter()
            way(texts)
            seconds[in_parallel].append(time.perf_counter() - started)
    chosen = min(seconds[True]) < min(seconds[False])
    return ways[chosen], chosen


def tokenizing(ask: Ask[Answers], in_parallel: bool) -> Ask[Answers]:
    """`ask`, with the tokenizer told so while it is at work, and no longer."""

    def told(texts: Sequence[str]) -> Answers:
        with _told(in_parallel):
            return ask(texts)

    return told


@contextmanager
def _told(in_parallel: bool) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(in_parallel).lower()
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
