"""Progress of reading."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO


class Meter:
    """Counts the bytes read from a source so far, as stored on disk, for the progress bar."""

    def __init__(self) -> None:
        self._finished_bytes = 0
        self._file: BinaryIO | None = None

    @property
    def done_bytes(self) -> int:
        return self._finished_bytes + (self._file.tell() if self._file else 0)

    def add(self, size_bytes: int) -> None:
        self._finished_bytes += size_bytes

    @contextmanager
    def reading(self, file: BinaryIO) -> Iterator[None]:
        """Count the position in `file` during the block, and add the bytes read afterwards."""
        self._file = file
        try:
            yield
        finally:
            self._finished_bytes += file.tell()
            self._file = None
