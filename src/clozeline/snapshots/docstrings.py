"""Snapshot of the docstrings of the installed environment."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from clozeline.artifacts.snapshot.manifest import SnapshotFile
from clozeline.machine.workers import Workers
from clozeline.progress import track
from clozeline.snapshots.python_docs import PythonModule, documented_modules
from clozeline.snapshots.record_shards import keep_records, line_of
from clozeline.snapshots.store import Store

_BATCH_BYTES = 1_000_000


def keep_docstrings(lock: Path, store: Store, workers: Workers) -> tuple[tuple[SnapshotFile, ...], int]:
    """Keep every docstring of the environment that `lock` pins; return the shards and the bytes of source code read.

    Raises:
        DataError: the lock cannot be read, or the environment is not the one it pins.
    """
    modules = documented_modules(lock)
    batches = list(_batches(modules))
    lines = track(workers.map(_lines_of, batches), "Reading docstrings", len(batches))
    return keep_records(chain.from_iterable(lines), store), sum(module.size_bytes for module in modules)


def _batches(modules: list[PythonModule]) -> Iterator[list[PythonModule]]:
    waiting: list[PythonModule] = []
    for module in modules:
        waiting.append(module)
        if sum(one.size_bytes for one in waiting) >= _BATCH_BYTES:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _lines_of(modules: list[PythonModule]) -> list[bytes]:
    return [line_of(record) for module in modules for record in module.records()]
