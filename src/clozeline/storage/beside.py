"""Locked temporary folders beside the file being written. An unlocked one is debris of a killed writer.

The lock is a kernel file lock (flock): it ends with its process, and every container that shares the file system sees
it. A process id would mean another process in another container.
"""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"\..+\.\d+\.[0-9a-f]{8}\.partial")
_LOCK: Final = ".held"


@contextlib.contextmanager
def held_beside(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; remove it after the block. Remove the debris of killed writers first.

    On a file system without locks no debris is removed.
    """
    with contextlib.suppress(OSError):  # the parent folder is missing or unreadable
        for left in [entry for entry in path.parent.iterdir() if _NAME.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):  # locked by another writer, or already removed
                _remove_abandoned(left)
    folder, lock = _made(path)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            _remove(folder)
        os.close(lock)


def _made(path: Path) -> tuple[Path, int]:
    """Return a new folder and the descriptor of its lock."""
    while True:
        folder = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.partial")
        folder.mkdir(parents=True)
        with contextlib.suppress(FileNotFoundError):  # another writer removed it before it was locked
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            with contextlib.suppress(OSError):
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
