"""Ledger of tasks: what each was computed from, and the hashes of what it wrote. A recorded task never runs twice.

A task writes files into a folder of its own. Its record is written last; then the folder gets its name, which is the
key of the task: a digest of its function, of the code, and of its inputs. A killed writer leaves no folder of that
name, and two writers of one task write the same bytes. A record whose files are damaged or gone counts as missing.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol, TypeVar

from clozeline.machine.workers import Workers
from clozeline.progress import track
from clozeline.storage.atomic import storage_faults_named
from clozeline.storage.fingerprints import sha256_of

_RECORD: Final = "record.json"
_KEY_BYTES: Final = 16


@dataclass(frozen=True)
class Done:
    """What a task returns besides its files."""

    facts: Any = None
    """Few values that JSON can hold, for the process that waits."""
    lasting: bool = True
    """False: a later run computes the task again."""


class Item(Protocol):
    """What a task works on."""

    @property
    def name(self) -> str:
        """What messages call the task."""

    @property
    def inputs(self) -> Sequence[object]:
        """All that decides what the task writes, besides code and settings: keys of other tasks, digests, numbers."""


@dataclass(frozen=True)
class Record:
    """A task that is done."""

    key: str
    folder: Path
    """Folder of its files."""
    facts: Any
    is_found: bool
    """Whether an earlier attempt or run had done it."""


AnyItem = TypeVar("AnyItem", bound=Item)
Function = Callable[[AnyItem, Path], Done]
"""Function of a module that fills an empty folder."""


@dataclass(frozen=True)
class Ledger:
    """Records in a folder that every worker sees. They may be deleted at any time between two runs."""

    folder: Path
    code: str
    """Fingerprint of the code and the settings that decide what tasks write."""
    workers: Workers

    def run(self, function: Function[AnyItem], items: Iterable[AnyItem]) -> Iterator[Record]:
        """Yield the record of each task in order; only those that are not recorded run.

        Raises:
            StorageError: the disk is full or read-only.
        """
        tasks = (self._task(function, item) for item in items)
        looked_up = ((task, record_in(task.path)) for task in tasks)  # here, so that no item of a recorded task is sent
        for is_found, group in groupby(looked_up, lambda one: one[1] is not None):
            if is_found:
                yield from (record for _, record in group if record)
            else:
                yield from self.workers.map(_recorded, (task for task, _ in group))

    def run_all(self, function: Function[AnyItem], items: Sequence[AnyItem], description: str) -> list[Record]:
        """Return the record of each task, and show the progress."""
        return list(track(self.run(function, items), description, len(items), lambda: self.workers.note))

    def keep_only(self, keys: Set[str]) -> None:
        """Remove every other record, and what killed writers left."""
        for path in self.folder.glob("*/*"):
            if path.name not in keys:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def _task(self, function: Function[AnyItem], item: AnyItem) -> "_Task":
        told = json.dumps([self.code, _named(function), item.inputs])
        key = blake2b(told.encode(), digest_size=_KEY_BYTES).hexdigest()
        return _Task(function, item, self.code, key, self.folder / key[:2] / key)


@contextmanager
def passing_ledger(parent: Path | None = None) -> Iterator[Ledger]:
    """Yield a ledger of this process alone, in a folder inside `parent` that is removed at the end."""
    with TemporaryDirectory(dir=parent) as name:
        yield Ledger(Path(name), "", Workers(None, 1))


@dataclass(frozen=True)
class _Task:
    function: Function[Any]
    item: Any
    code: str
    key: str
    path: Path

    @property
    def name(self) -> str:
        return str(self.item.name)


def _recorded(task: _Task) -> Record:
    """Return the record of a task; run it if there is none. An attempt whose node died may have left one."""
    return record_in(task.path) or _made(task)


def _named(function: Function[Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def record_in(folder: Path) -> Record | None:
    """Return the record of the task whose files are in `folder`; None if it is missing, damaged, or does not last."""
    try:
        told = json.loads((folder / _RECORD).read_bytes())
        is_whole = told["lasting"] and told["sha256"] == _hashes(folder)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return Record(folder.name, folder, told["facts"], is_found=True) if is_whole else None


def _made(task: _Task) -> Record:
    path = task.path
    beside = path.with_name(f"{task.key}.{os.getpid()}.{os.urandom(4).hex()}.partial")
    with storage_faults_named(path):
        beside.mkdir(parents=True)
        try:
            done = task.function(task.item, beside)
            told = {
                "task": task.name,
                "function": _named(task.function),
                "code": task.code,
                "inputs": task.item.inputs,
                "sha256": _hashes(beside),
                "facts": done.facts,
                "lasting": done.lasting,
            }
            (beside / _RECORD).write_text(json.dumps(told), encoding="utf-8")
            if path.exists() and record_in(path) is None:
                shutil.rmtree(path)  # damaged, or not lasting
            if not path.exists():
                beside.rename(path)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return Record(task.key, path, json.loads(json.dumps(done.facts)), is_found=False)


def _hashes(folder: Path) -> dict[str, str]:
    """Return file name → sha256, without the record."""
    return {path.name: sha256_of(path) for path in sorted(folder.iterdir()) if path.name != _RECORD}
