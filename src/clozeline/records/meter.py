"""How far reading is along."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO


class Meter:
    """How many bytes of a source have been read so far, as they lie on disk: what the progress bar shows."""

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
        """Count the position in `file` while the block runs, and all that was read of it afterwards."""
        self._file = file
        try:
            yield
        finally:
            self._finished_bytes += file.tell()
            self._file = None
