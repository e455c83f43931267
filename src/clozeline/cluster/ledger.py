"""Ledger of tasks: what each was computed from, and the hashes of what it wrote. A recorded task never runs twice.

A task writes files into a folder of its own. Its record, which lists the files with their sizes and sha256, is written
last; then the folder gets its name, which is the key of the task: a digest of its function, of the code, and of its
inputs. A killed writer leaves no folder of that name, and two writers of one task write the same bytes. A record whose
files are damaged or gone counts as missing.

Where workers and this process share no folder, records and files are in a store as well: a task first fetches the files
that it reads, and stores what it wrote, its record last. Then the folder of the ledger is a cache.

Tasks run in processes of this machine, or on the cluster that the environment names.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from hashlib import blake2b, sha256
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from clozeline.cluster.store import RECORD, FetchedFile, SharedStore, reachable_cluster
from clozeline.system.files import sha256_of, storage_faults_named
from clozeline.system.machine import available_cores
from clozeline.system.progress import track
from clozeline.system.workers import Workers, worker_processes

_KEY_BYTES = 16
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
# Folder of the store with files that no task wrote, named by their sha256.
_OTHERS = "others"


def place_of(folder: Path) -> str:
    """Return the folder of a task in the store: its path from the name of the ledger's folder on."""
    return "/".join(folder.parts[-3:])


def files_of(folder: Path, content: bytes) -> tuple[FetchedFile, ...]:
    """Return the files of the task that belong into `folder`, from the content of its record, which is the last one.

    Raises:
        ValueError, TypeError or KeyError: the content is not that of a record.
    """
    told, place = json.loads(content), place_of(folder)
    sizes = {**told["bytes"], RECORD: len(content)}
    hashes = {**told["sha256"], RECORD: sha256(content).hexdigest()}
    if outside := [name for name in hashes if name in {"", ".."} or name != Path(name).name]:
        raise ValueError(f"{outside} are no names of files")  # `../..` would be written wherever it leads
    return tuple(FetchedFile(folder / one, f"{place}/{one}", sizes[one], hashes[one], told["task"]) for one in hashes)


@dataclass(frozen=True)
class Done:
    """What a task returns besides its files."""

    facts: Any = None  # few values that JSON can hold, for the process that waits
    lasting: bool = True  # False: a later run computes the task again


@dataclass(frozen=True)
class Item:
    """A task that is not done."""

    name: str  # what messages call the task
    # All that decides what the task writes, besides code and settings: keys of other tasks, digests, numbers.
    inputs: Sequence[object]
    # Files that the task reads: a worker that shares no folder with this process gets them beforehand.
    reads: Sequence[Path]
    run: "partial[Done]"  # function of a module, and what it is given besides the empty folder that it fills

    @property
    def function(self) -> str:
        return f"{self.run.func.__module__}.{self.run.func.__qualname__}"


@dataclass(frozen=True)
class FinishedTask:
    """A task that is done."""

    key: str
    folder: Path  # folder of its files
    facts: Any
    is_found: bool  # whether an earlier attempt or run had done it
    stored: tuple[FetchedFile, ...] = ()  # its files, if they are in a store


@dataclass(frozen=True)
class Ledger:
    """Records in a folder that every worker sees, or in a store. They may be deleted at any time between two runs."""

    folder: Path
    code: str  # fingerprint of the code and the settings that decide what tasks write
    workers: Workers
    # Files that are in the store, by their paths.
    _stored: dict[Path, FetchedFile] = field(default_factory=dict, init=False)
    # Sizes of the files that earlier runs left in the store.
    _sizes: dict[str, int] = field(default_factory=dict, init=False)

    @property
    def store(self) -> SharedStore | None:
        return getattr(self.workers, "store", None)  # those of this machine have none

    def run(self, items: Iterable[Item], read: Sequence[str] = ("*",)) -> Iterator[FinishedTask]:
        """Yield the record of each task in order; only those that are not recorded run.

        Args:
            read: patterns of the names of those files that this process reads; nodes read what items name.

        Raises:
            StorageError: the disk is full or read-only.
            ArtifactError: a file in the store is damaged.
        """
        looked_up = (
            (task, self._found(task)) for task in map(self._task, items)
        )  # here, so that no item of a recorded task is sent
        for is_found, group in groupby(looked_up, lambda one: one[1] is not None):
            if is_found:
                yield from (self._here(record, read) for _, record in group if record)
            else:
                made = self.workers.map(_recorded, (self._with_files(task) for task, _ in group))
                yield from (self._here(record, read) for record in made)

    def run_all(self, items: Sequence[Item], description: str, read: Sequence[str] = ("*",)) -> list[FinishedTask]:
        """Return the record of each task, and show the progress."""
        return list(track(self.run(items, read), description, len(items), lambda: self.workers.note))

    def keep_only(self, keys: Set[str]) -> None:
        """Remove every other record, and what killed writers left."""
        for path in self.folder.glob("*/*"):
            if path.name not in keys:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        if self.store is not None:
            self._remove(place for place in self.store.sizes(self._place) if place.split("/")[2] not in keys)

    def drop(self, key: str) -> None:
        """Remove the record of a task."""
        shutil.rmtree(self.folder / key[:2] / key, ignore_errors=True)
        if self.store is not None:
            self._remove(self.store.sizes(f"{self._place}/{key[:2]}/{key}"))

    @property
    def _place(self) -> str:
        """Its folder in the store."""
        return self.folder.name

    def _remove(self, places: Iterable[str]) -> None:
        assert self.store is not None
        self.store.remove(sorted(places, key=lambda place: not place.endswith(f"/{RECORD}")))  # a record goes first

    def _task(self, item: Item) -> "_Task":
        told = json.dumps([self.code, item.function, item.inputs])
        key = blake2b(told.encode(), digest_size=_KEY_BYTES).hexdigest()
        return _Task(item, self.code, key, self.folder / key[:2] / key, self.store)

    def _found(self, task: "_Task") -> FinishedTask | None:
        if self.store is None:
            return record_in(task.path)
        if not self._sizes:
            self._sizes.update({"": 0} | self.store.sizes(self._place))
        found = _record_of(task.path, self.store) if f"{place_of(task.path)}/{RECORD}" in self._sizes else None
        if found and all(self._sizes.get(file.place) == file.size_bytes for file in found.stored):
            return found
        self.store.remove([f"{place_of(task.path)}/{RECORD}"] if found else [])  # a file is cut or gone
        return None

    def _here(self, record: FinishedTask, read: Sequence[str]) -> FinishedTask:
        """Fetch what this process reads of a task."""
        for file in record.stored:
            self._stored[file.path] = file
            if self.store is not None and any(fnmatch(file.path.name, pattern) for pattern in read):
                self.store.fetch(file)
        return record

    def _with_files(self, task: "_Task") -> "_Task":
        """Return the task with the files that it reads, which are then in the store."""
        if self.store is None:
            return task
        paths = dict.fromkeys(task.item.reads)
        return replace(task, files=tuple(file for path in paths if (file := self._file(path, self.store))))

    def _file(self, path: Path, store: SharedStore) -> FetchedFile | None:
        """Return a file as the store has it; None if it is of an earlier run and gone."""
        if path not in self._stored and self.folder in path.parents:
            found = _record_of(path.parent, store)
            self._stored.update({file.path: file for file in found.stored} if found else {})
        elif path not in self._stored:  # no task wrote it
            digest, size_bytes = sha256_of(path), path.stat().st_size
            target = f"{self._place}/{_OTHERS}/{digest}"
            if store.sizes(target).get(target) != size_bytes:
                store.put(path, target)
            self._stored[path] = FetchedFile(path, target, size_bytes, digest, "this machine")
        return self._stored.get(path)


@contextmanager
def passing_ledger(parent: Path | None = None) -> Iterator[Ledger]:
    """Yield a ledger of this process alone, in a folder inside `parent` that is removed at the end."""
    with TemporaryDirectory(dir=parent) as name:
        yield Ledger(Path(name), "", Workers(None, 1))


@dataclass(frozen=True)
class _Task:
    item: Item
    code: str
    key: str
    path: Path
    store: SharedStore | None
    files: tuple[FetchedFile, ...] = ()  # files that it reads, if they are in a store

    @property
    def name(self) -> str:
        return self.item.name


def _recorded(task: _Task) -> FinishedTask:
    """Return the record of a task; run it if there is none, on fetched files if nodes share a store, which then gets
    what it wrote, its record last. An attempt whose node died may have left a record.
    """
    if task.store is None:
        return record_in(task.path) or _made(task)
    if found := _record_of(task.path, task.store):
        return found
    for file in task.files:
        task.store.fetch(file)
    record = _made(task)
    files = files_of(task.path, (task.path / RECORD).read_bytes())
    for file in files:
        task.store.put(file.path, file.place)
    return replace(record, stored=files)


def record_in(folder: Path) -> FinishedTask | None:
    """Return the record of the task whose files are in `folder`; None if it is missing, damaged, or does not last."""
    try:
        told = json.loads((folder / RECORD).read_bytes())
        is_whole = told["lasting"] and told["sha256"] == _hashes(folder)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return FinishedTask(folder.name, folder, told["facts"], is_found=True) if is_whole else None


def _record_of(folder: Path, store: SharedStore) -> FinishedTask | None:
    """Return the record of the task whose files belong into a folder, from the store, as `record_in` does."""
    content = store.read(f"{place_of(folder)}/{RECORD}") or b""
    try:
        told, files = json.loads(content), files_of(folder, content)
        found = FinishedTask(folder.name, folder, told["facts"], is_found=True, stored=files)
        return found if told["lasting"] else None
    except (ValueError, TypeError, KeyError):
        return None


def _made(task: _Task) -> FinishedTask:
    path = task.path
    beside = path.with_name(f"{task.key}.{os.getpid()}.{os.urandom(4).hex()}.partial")
    with storage_faults_named(path):
        beside.mkdir(parents=True)
        try:
            done = task.item.run(beside)
            told = {
                "task": task.name,
                "function": task.item.function,
                "code": task.code,
                "inputs": task.item.inputs,
                "sha256": _hashes(beside),
                "bytes": {entry.name: entry.stat().st_size for entry in sorted(beside.iterdir())},
                "facts": done.facts,
                "lasting": done.lasting,
            }
            (beside / RECORD).write_text(json.dumps(told), encoding="utf-8")
            try:
                beside.rename(path)
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
                if record_in(path) is None:  # damaged, or not lasting; otherwise another attempt was faster
                    shutil.rmtree(path)
                    beside.rename(path)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return FinishedTask(task.key, path, json.loads(json.dumps(done.facts)), is_found=False)


def _hashes(folder: Path) -> dict[str, str]:
    """Return file name → sha256, without the record."""
    return {path.name: sha256_of(path) for path in sorted(folder.iterdir()) if path.name != RECORD}


@contextmanager
def open_workers(shared: Path, num_processes: int | None = None, *, trains: bool = False) -> Iterator[Workers]:
    """Yield processes of this machine, or the nodes of the cluster at `CLOZELINE_CLUSTER`. The results are the same.

    Args:
        shared: folder of the project, which every node has to see at the same path.
        num_processes: of this machine; one for each core by default.
        trains: whether a task is a training, which takes all cores of a node and a GPU where there are any. It
            needs the shared folder; others may have the store at `CLOZELINE_CLUSTER_STORE` instead.

    Raises:
        ParamsError: the address has another form, or the store.
        StorageError: nothing can be written to the store.
        ModuleNotFoundError: Ray is not installed.
        TransientError: the cluster does not answer, or the store.
        ClusterError: a node has other versions, or does not see `shared`, or the store.
    """
    address = reachable_cluster()  # before the import of Ray, which takes seconds
    if address is None:
        with worker_processes(num_processes or available_cores()) as workers:
            yield workers
        return
    store = None if trains else SharedStore.of_environment()
    from clozeline.cluster.ray_workers import ray_workers

    with ray_workers(address, shared, store, trains=trains) as workers:
        yield workers
