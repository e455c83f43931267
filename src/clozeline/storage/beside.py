"""A folder beside what is being written, held by who writes: one that nobody holds is what a killed writer left.

What holds it is the kernel's lock on a file in it. It ends with its process, however that ends, and is seen from every
container that sees the file; a process's number means another process there.
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
    """Yield a folder of our own beside `path`, gone with the block; before, those that killed writers left there go.

    Where the file system has no locks, nothing that was left is taken for abandoned.
    """
    with contextlib.suppress(OSError):  # there is no such folder yet, or it is not to be looked into
        for left in [entry for entry in path.parent.iterdir() if _NAME.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):  # somebody holds it, or was quicker
                _remove_abandoned(left)
    folder, lock = _made(path)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            _remove(folder)
        os.close(lock)


def _made(path: Path) -> tuple[Path, int]:
    """A new folder, and the open file that holds it."""
    while True:
        folder = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.partial")
        folder.mkdir(parents=True)
        with contextlib.suppress(FileNotFoundError):  # taken for abandoned, before there was anything to hold
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            if (folder / _LOCK).exists():
                return folder, lock
            os.close(lock)


def _remove_abandoned(folder: Path) -> None:
    """Raises:
    OSError: somebody holds it, or it is not of our making.
    """
    if not (folder / _LOCK).exists():
        folder.rmdir()  # if it is empty: of one who was killed before it was held, or who will make another
        return
    lock = os.open(folder / _LOCK, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(folder)
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    """The lock last: if we are killed here, what is left can still be told for abandoned."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != _LOCK:
            entry.unlink()
    shutil.rmtree(folder)
