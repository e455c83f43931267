"""Write beside, then rename: a reader sees the old file or the new one, never half of either."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clozeline.errors import StorageError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Yield a path to write; move it onto `path` if the block succeeds, remove it if not.

    Raises:
        StorageError: the disk is full; `path` still holds what it held before.
    """
    beside = _beside(path)
    try:
        with _full_disk_named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield beside
            _flush(beside)
            beside.replace(path)
            _flush(path.parent)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; move it onto `path` if the block succeeds, remove it if not.

    Raises:
        StorageError: the disk is full; `path` still holds what it held before.
    """
    beside = _beside(path)
    try:
        with _full_disk_named(path):
            beside.mkdir(parents=True)
            yield beside
            for file in beside.rglob("*"):
                _flush(file)
            if path.exists():
                old = _beside(path)
                path.replace(old)
                beside.replace(path)
                shutil.rmtree(old)
            else:
                beside.replace(path)
            _flush(path.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.partial")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _full_disk_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
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
