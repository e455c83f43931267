"""Arrays that lie in files: as long as the corpus is large, while memory holds the part that is looked at.

What a process allocates must stay in memory; pages of a file the kernel writes back and drops when it needs the room.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

Empty = Callable[[int, DTypeLike], NDArray[Any]]
"""Makes an array of a length and a type, as `np.empty` does."""

CHUNK = 1 << 16
"""Numbers to look at in one go."""


@dataclass(frozen=True)
class DiskArrays:
    """Makes arrays in files that have no name: each is gone when nobody uses it any more."""

    folder: Path | None = None
    """None: where the machine keeps temporary files."""

    def empty(self, length: int, dtype: DTypeLike) -> NDArray[Any]:
        """Zeros, in fact."""
        if not length:
            return np.empty(0, dtype)
        with TemporaryFile(dir=self.folder) as file:
            return np.asarray(np.memmap(file, dtype, mode="w+", shape=(length,)))

    def joined(self, parts: Iterable[NDArray[Any]], dtype: DTypeLike) -> NDArray[Any]:
        """Arrays back to back."""
        with TemporaryFile(dir=self.folder) as file:
            for part in parts:
                np.ascontiguousarray(part, dtype).tofile(file)
            file.flush()
            return np.asarray(np.memmap(file, dtype, mode="r+")) if file.tell() else np.empty(0, dtype)


def mapped(path: Path, dtype: DTypeLike, mode: Literal["r", "r+"] = "r") -> NDArray[Any]:
    """A file of numbers back to back."""
    if not path.stat().st_size:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode=mode))


def chunks(length: int, size: int = CHUNK) -> Iterator[slice]:
    """Cut 0 … `length` into parts of `size`."""
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def gathered(values: NDArray[Any], places: NDArray[Any], empty: Empty) -> NDArray[Any]:
    """`values[places]`, made bit by bit."""
    found = empty(len(places), values.dtype)
    for chunk in chunks(len(places)):
        found[chunk] = values[places[chunk]]
    return found
