"""Files and folders: atomic writes, temporary folders, locks of processes, links, hashes, CSV tables, sweeping.

A write goes to a file or folder beside the target, which is then renamed: a reader sees the old content or the new,
never a part. A temporary folder is locked while it is written; an unlocked one is debris of a killed writer.

A lock is a kernel file lock (flock): it ends with its process, and every container that shares the file system sees it.
A process id would mean another process in another container.
"""

import csv
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import Field, astuple, dataclass, fields
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import clozeline
from clozeline.system.errors import ArtifactError, StorageError
from clozeline.system.progress import ProgressBar

_NAME = re.compile(r"\..+\.\d+\.[0-9a-f]{8}\.partial")
_LOCK = ".held"

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_AT_FDCWD = -100  # <linux/fcntl.h>
_RENAME_EXCHANGE = 2  # <linux/fs.h>
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


@contextmanager
def held_beside(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; remove it after the block. Remove the debris of killed writers first.

    On a file system without locks no debris is removed.
    """
    with suppress(OSError):  # the parent folder is missing or unreadable
        for left in [entry for entry in path.parent.iterdir() if _NAME.fullmatch(entry.name)]:
            with suppress(OSError):  # locked by another writer, or already removed
                _remove_abandoned(left)
    folder, lock = _made(path)
    try:
        yield folder
    finally:
        with suppress(OSError):
            _remove(folder)
        os.close(lock)


def _made(path: Path) -> tuple[Path, int]:
    """Return a new folder and the descriptor of its lock."""
    while True:
        folder = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.partial")
        folder.mkdir(parents=True)
        with suppress(FileNotFoundError):  # another writer removed it before it was locked
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            if (folder / _LOCK).exists():
                return folder, lock
            os.close(lock)


def _remove_abandoned(folder: Path) -> None:
    """Remove the folder of a killed writer.

    Raises:
        OSError: it is locked, or was not made by this module.
    """
    if not (folder / _LOCK).exists():
        folder.rmdir()  # succeeds if empty: its writer was killed before locking, or will make another
        return
    lock = os.open(folder / _LOCK, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(folder)
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    """Remove the lock last, so that the folder is still recognized as abandoned if we are killed here."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != _LOCK:
            entry.unlink()
    shutil.rmtree(folder)


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to. Move it to `path` if the block succeeds, else remove it.

    Raises:
        StorageError: the disk is full or read-only; `path` is unchanged.
    """
    with storage_faults_named(path), held_beside(path) as folder:
        beside = folder / path.name
        yield beside
        _flush(beside)
        beside.replace(path)
        _flush(path.parent)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill. Move it to `path` if the block succeeds, else remove it.

    Raises:
        StorageError: the disk is full or read-only; `path` is unchanged.
    """
    with storage_faults_named(path), held_beside(path) as folder:
        beside = folder / path.name
        beside.mkdir()
        yield beside
        for file in beside.rglob("*"):
            _flush(file)
        if path.exists():
            _swap(beside, path)
        else:
            beside.replace(path)
        _flush(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder atomically: readers see all of it or nothing. A missing folder is ignored."""
    with suppress(FileNotFoundError), held_beside(path) as folder:
        path.replace(folder / path.name)


def _swap(new: Path, path: Path) -> None:
    """Exchange the two folders."""
    if not _exchange(new, path):
        old = new.parent.with_suffix(".old")  # not named like an abandoned folder, so it survives if we are killed here
        path.replace(old)
        try:
            new.replace(path)
        except OSError:
            old.replace(path)
            raise
        old.replace(new)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically (renameat2); False if the kernel or the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def storage_faults_named(path: Path) -> Iterator[None]:
    """Raises:
    StorageError: the disk of `path` is full or read-only.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EROFS:
            do = "remount the file system read-write, or choose another folder"
            raise StorageError(f"{path} cannot be written: its file system is mounted read-only", do=do) from error
        if error.errno not in _NO_SPACE:
            raise
        disk = next(parent for parent in path.resolve().parents if parent.exists())
        raise StorageError(
            f"no space left while writing {path}: {shutil.disk_usage(disk).free:,} bytes free; the old content stays",
            do="free space on that disk, then run again (`du -sh work/*` shows what this project keeps)",
        ) from error


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a hard link to the unchanging file `source`, or a copy where the file system has no such links."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Exclude every other process that locks `file` from the block."""
    with file.open("a", encoding="utf-8") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


class Dataclass(Protocol):
    """An instance of any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


RowRecord = TypeVar("RowRecord", bound=Dataclass)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write UTF-8 with a line feed after each row on every system: equal rows give equal bytes."""
    with replacing_file(path) as beside, beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_records(path: Path, kind: type[RowRecord], rows: Iterable[RowRecord]) -> None:
    """Write one column for each field of the dataclass `kind`."""
    write_csv(path, [field.name for field in fields(kind)], (astuple(row) for row in rows))


@dataclass(frozen=True, slots=True)
class Removal:
    """One step of a sweep. After each step the store is consistent, so a sweep may be killed between any two."""

    num_bytes: int
    remove: Callable[[], None]
    num_items: int = 1


@dataclass(frozen=True, slots=True)
class SweptStore:
    """A place that is swept."""

    name: str
    num_kept: int
    removals: tuple[Removal, ...] = ()  # in the order in which they have to be done

    @classmethod
    def of_paths(cls, name: str, paths: Iterable[Path], is_gone: Callable[[Path], bool]) -> "SweptStore":
        """Return the store of these files and folders, of which those that `is_gone` is true for can be removed."""
        found = sorted(set(paths))
        gone = [path for path in found if is_gone(path)]
        sizes = (sum(file.stat().st_size for file in files_in(path) if not file.is_symlink()) for path in gone)
        removals = (Removal(size, partial(remove, path)) for path, size in zip(gone, sizes, strict=True))
        return cls(name, len(found) - len(gone), tuple(removals))

    @property
    def num_removable(self) -> int:
        return sum(removal.num_items for removal in self.removals)

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that can be removed."""
        return sum(removal.num_bytes for removal in self.removals)


def sweep(stores: Iterable[SweptStore]) -> None:
    """Do every removal, store by store."""
    for store in stores:
        with ProgressBar(f"sweep {store.name}", store.num_removable) as progress:
            for removal in store.removals:
                removal.remove()
                progress.advance(removal.num_items)


def files_in(path: Path) -> list[Path]:
    """Return `path` if it is a file, or the files in the folder, in order; none if there is nothing."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def remove(path: Path) -> None:
    """Remove a file or a folder."""
    if path.is_dir():
        remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def fingerprint(facts: Mapping[str, object], files: Iterable[Path]) -> str:
    """Return a fingerprint of what decides a result: `facts` as JSON, and the contents of `files`."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for path in files:
        digest.update(path.name.encode())
        digest.update(bytes.fromhex(sha256_of(path)))
    return digest.hexdigest()[:16]


def sha256_of(content: Path | bytes) -> str:
    """Return the sha256 of a file or of bytes, in hexadecimal digits."""
    return _digest_of(content, hashlib.sha256)


def md5_of(content: Path | bytes) -> str:
    """Return the MD5 of a file or of bytes, as DVC computes it."""
    return _digest_of(content, partial(hashlib.md5, usedforsecurity=False))


def sha256_of_files(folder: Path) -> str:
    """Return one sha256 over the paths and contents of all files in a folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    listed = "".join(f"{sha256_of(file)}  {file.relative_to(folder).as_posix()}\n" for file in files)
    return sha256_of(listed.encode())


def expect(file: Path, sha256: str, *, do: str) -> None:
    """Check the content of a file.

    Raises:
        ArtifactError: it has another sha256, or is missing.
    """
    given = sha256_of(file) if file.is_file() else "no such file"
    if given != sha256:
        raise ArtifactError(f"{file} is another file: sha256 {given}, not {sha256}", do=do)


def _digest_of(content: Path | bytes, algorithm: Callable[..., Any]) -> str:
    if isinstance(content, bytes):
        return str(algorithm(content).hexdigest())
    with content.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of these packages."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in packages}


def code_of(places: Iterable[str]) -> list[Path]:
    """Return the package's Python files at the paths `places`, files or folders in it."""
    package = Path(clozeline.__file__).parent
    return [
        file
        for place in places
        for file in ([package / place] if place.endswith(".py") else sorted((package / place).rglob("*.py")))
    ]
