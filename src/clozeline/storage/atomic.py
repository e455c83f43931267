"""Write beside, then rename: a reader sees the old file or the new one, never half of either."""

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
    """Yield a path to write; move it onto `path` if the block succeeds, remove it if not.

    Raises:
        StorageError: the disk is full, or may only be read; `path` still holds what it held before.
    """
    with _storage_faults_named(path), held_beside(path) as folder:
        beside = folder / path.name
        yield beside
        _flush(beside)
        beside.replace(path)
        _flush(path.parent)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; move it onto `path` if the block succeeds, remove it if not.

    Raises:
        StorageError: the disk is full, or may only be read; `path` still holds what it held before.
    """
    with _storage_faults_named(path), held_beside(path) as folder:
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
    """Remove it whole: who looks for it meanwhile finds all of it or none. It may be gone already."""
    with suppress(FileNotFoundError), held_beside(path) as folder:
        path.replace(folder / path.name)


def _swap(new: Path, path: Path) -> None:
    """What was at `new` is then at `path`, and what was at `path` at `new`."""
    if not _exchange(new, path):
        old = new.parent.with_suffix(".old")  # beside ours: nobody takes it for abandoned, should we be killed here
        path.replace(old)
        try:
            new.replace(path)
        except OSError:
            old.replace(path)
            raise
        old.replace(new)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names at once, as only the kernel can; False where it, or the file system, cannot."""
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
def _storage_faults_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EROFS:
            raise StorageError(
                f"{path} cannot be written",
                given="a file system that is mounted read-only",
                expected="a folder that may be written to",
                do="mount it to be written to, or name another place",
            ) from error
        if error.errno not in _NO_SPACE:
            raise
        raise StorageError(
            f"no space left while writing {path}",
            given=f"{shutil.disk_usage(_existing_parent(path)).free:,} bytes free",
            expected="room for the whole file; what was there before is untouched",
            do="free some space (`dvc gc --workspace` drops unused cache files), then run again",
        ) from error


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in path.resolve().parents if parent.exists())
