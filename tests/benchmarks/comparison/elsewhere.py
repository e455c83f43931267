"""Runs a side in a process of its own if its packages conflict with the project's, and measures it there.

Each call is pickled: the function, whose module must import nothing of the project, and its arguments.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

BENCHMARKS = Path(__file__).parents[1]

Ask = Callable[[Sequence[str]], Any]


def elsewhere(packages: Path) -> Executor:
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


def texts_per_second(ask: Ask, texts: Sequence[str], *, in_a_call: int) -> float:
    """Return the texts per second of consecutive calls with `in_a_call` texts each."""
    started = time.perf_counter()
    for at in range(0, len(texts), in_a_call):
        ask(texts[at : at + in_a_call])
    return len(texts) / (time.perf_counter() - started)


def median_milliseconds(ask: Ask, texts: Sequence[str]) -> float:
    """Return the median duration of calls with one text each."""
    seconds = []
    for text in texts:
        started = time.perf_counter()
        ask([text])
        seconds.append(time.perf_counter() - started)
    return 1000 * median(seconds)


# `tokenizers` reads it at each call.
VARIABLE = "TOKENIZERS_PARALLELISM"
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
    if isinstance(side, There):
        return replace(side, ask=_Tokenizing(side.ask, in_parallel)), in_parallel
    return _Tokenizing(side, in_parallel), in_parallel


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
    """A side whose tokenizer has this setting during each call only."""

    ask: Ask
    in_parallel: bool

    def __call__(self, texts: Sequence[str]) -> Any:
        before = {name: os.environ[name] for name in (VARIABLE,) if name in os.environ}
        os.environ[VARIABLE] = str(self.in_parallel).lower()
        try:
            return self.ask(texts)
        finally:
            del os.environ[VARIABLE]
            os.environ.update(before)
