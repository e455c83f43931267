"""Memory-mapped arrays, so that memory use does not grow with the corpus; and the return of memory that Arrow freed.

Allocated memory has to stay resident; the kernel can write back and drop the pages of a file.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

# Function that allocates an array of a length and a dtype, like `np.empty`.
Empty = Callable[[int, DTypeLike], NDArray[Any]]

# Elements processed at a time.
CHUNK = 1 << 16


@dataclass(frozen=True)
class DiskArrays:
    """Allocates arrays in unnamed temporary files, which the system deletes after their last use."""

    folder: Path | None = None  # folder of the files; None: the system's temporary folder

    def empty(self, length: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return a new array (filled with zeros)."""
        if not length:
            return np.empty(0, dtype)
        with TemporaryFile(dir=self.folder) as file:
            return np.asarray(np.memmap(file, dtype, mode="w+", shape=(length,)))

    def joined(self, parts: Iterable[NDArray[Any]], dtype: DTypeLike) -> NDArray[Any]:
        """Return the concatenation of `parts`."""
        with TemporaryFile(dir=self.folder) as file:
            for part in parts:
                np.ascontiguousarray(part, dtype).tofile(file)
            file.flush()
            return np.asarray(np.memmap(file, dtype, mode="r+")) if file.tell() else np.empty(0, dtype)


def mapped(path: Path, dtype: DTypeLike) -> NDArray[Any]:
    """Map a file of raw numbers as a one-dimensional array."""
    if not path.stat().st_size:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r"))


def chunks(length: int, size: int = CHUNK) -> Iterator[slice]:
    """Cut `range(length)` into slices of `size`."""
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def gathered(values: NDArray[Any], places: NDArray[Any], empty: Empty) -> NDArray[Any]:
    """Return `values[places]`, computed chunk by chunk."""
    found = empty(len(places), values.dtype)
    for chunk in chunks(len(places)):
        found[chunk] = values[places[chunk]]
    return found


@contextmanager
def system_allocator() -> Iterator[None]:
    """Use the system allocator inside the block. Arrow's own keeps freed memory: 60 MB after a small corpus."""
    before = pa.default_memory_pool()
    use_system_allocator()
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def use_system_allocator() -> None:
    pa.set_memory_pool(pa.system_memory_pool())
