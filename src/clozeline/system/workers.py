"""Worker processes that return their results in order and hold only a few items at a time."""

import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, TypeVar

import pyarrow as pa

from clozeline.system import arrays, errors
from clozeline.system.machine import out_of_memory_kills

Item = TypeVar("Item")
Result = TypeVar("Result")

IN_FLIGHT_PER_WORKER = 2


class Workers:
    """Maps functions over items, with a single worker in this process. Results do not depend on the worker count."""

    def __init__(self, executor: ProcessPoolExecutor | None, num_workers: int) -> None:
        self._executor = executor
        self._window = num_workers * IN_FLIGHT_PER_WORKER
        self._kills_before = out_of_memory_kills()

    @property
    def note(self) -> str:
        """What to show beside the progress of a map."""
        return ""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield `function(item)` in the order of `items`, drawing items only as fast as results are taken.

        Raises:
            TransientError: a process was killed, or crashed.
        """
        if self._executor is None:
            yield from map(function, items)
            return
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(self._executor.submit(function, item))
                if len(waiting) >= self._window:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise _killed(self._kills_before) from error

    def release(self) -> None:
        """Let the processes end and free their memory; no call to `map` may follow."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)


@contextmanager
def worker_processes(num_workers: int) -> Iterator[Workers]:
    """Yield a pool of `num_workers`. Queued work is dropped if the block fails."""
    with arrays.system_allocator():
        if num_workers == 1:
            yield Workers(None, 1)
            return
        executor = ProcessPoolExecutor(num_workers, mp_context=_Spawning(), initializer=_start_worker)
        try:
            yield Workers(executor, num_workers)
        finally:
            executor.shutdown(cancel_futures=True)


def _killed(kills_before: int | None) -> errors.TransientError:
    kills = out_of_memory_kills()
    ran_out = kills is not None and kills_before is not None and kills > kills_before
    why = "the kernel killed it, because memory ran out" if ran_out else "it was killed, or crashed"
    first = (
        "give the machine more memory, or fewer cores (`taskset -c 0`)" if ran_out else "see `dmesg`, the kernel's log"
    )
    return errors.TransientError(
        f"a worker process ended before its task was done: {why}",
        do=f"{first}; then run the same command again, outputs are unchanged",
    )


class _Worker(SpawnProcess):
    """A process that does not import the caller's script: it would run that again, and workers need our code only."""

    def start(self) -> None:
        main = vars(sys.modules["__main__"])
        before: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
        main.pop("__file__", None)
        main["__spec__"] = None
        try:
            super().start()
        finally:
            main.update(before)


class _Spawning(SpawnContext):
    """Spawned processes: forking a process with threads (pyarrow, the progress bar) can deadlock."""

    Process = _Worker


def prepare_worker() -> None:
    """Set up a process for our tasks; called again, it does nothing new."""
    arrays.use_system_allocator()
    if "pandas" not in sys.modules:
        _block_pandas_import()


def _start_worker() -> None:
    prepare_worker()
    threading.Thread(target=_end_with_parent, daemon=True).start()


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _block_pandas_import() -> None:
    """Keep pyarrow's first array from importing pandas (in case of a Series): half of a worker's start."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(finder)


def _end_with_parent() -> None:
    """End this worker with its parent: one killed by SIGKILL leaves the queue open, and workers would wait forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
