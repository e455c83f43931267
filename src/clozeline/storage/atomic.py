"""Atomic writes: write beside the target, then rename. A reader sees the old content or the new, never a part."""

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clozeline.errors import StorageError
from clozeline.storage.beside import held_beside

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_AT_FDCWD = -100  # <linux/fcntl.h>
_RENAME_EXCHANGE = 2  # <linux/fs.h>
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


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
            raise StorageError(
                f"{path} cannot be written",
                given="a file system that is mounted read-only",
                expected="a writable folder",
                do="remount the file system read-write, or choose another folder",
            ) from error
        if error.errno not in _NO_SPACE:
            raise
        raise StorageError(
            f"no space left while writing {path}",
            given=f"{shutil.disk_usage(_existing_parent(path)).free:,} bytes free",
            expected="room for the whole file; the previous content is untouched",
            do="free space on that disk, then run again (`du -sh work/*` shows what this project keeps)",
        ) from error


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in path.resolve().parents if parent.exists())
