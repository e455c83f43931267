"""Sketches of all texts: the buckets on disk, and a few numbers for each text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.storage.arrays import DiskArrays, chunks, gathered
from clozeline.text.sketched_buckets import COLUMNS, SketchedBucket


@dataclass(frozen=True)
class Sketches:
    """Sketches of N texts, numbered in the order of the source. Band hashes and shingles are in the buckets."""

    place_N: NDArray[np.int64]
    """Index of each text in bucket order."""
    parent_N: NDArray[np.int64]
    """Equal for the parts that were cut from one document."""
    draw_N: NDArray[np.float64]
    shingle_start_N: NDArray[np.int64]
    """Index of the first shingle in the file of the text's bucket."""
    num_shingles_N: NDArray[np.int64]
    folder: Path
    """Folder for files derived from these, which every worker sees."""
    buckets: tuple[SketchedBucket, ...]
    num_bands: int

    @property
    def num_texts(self) -> int:
        return len(self.place_N)

    @classmethod
    def of(cls, buckets: Sequence[SketchedBucket], num_bands: int, folder: Path) -> "Sketches":
        """Number the texts of the buckets. `folder` is made."""
        folder.mkdir()
        disk = DiskArrays(folder)
        ordinals = disk.joined((bucket.column("ordinals") for bucket in buckets), np.int64)
        place_N = _places(ordinals, disk)
        return cls(
            place_N=place_N,
            parent_N=_by_source(buckets, "parents", place_N, disk),
            draw_N=_by_source(buckets, "draws", place_N, disk),
            shingle_start_N=gathered(disk.joined(_shingle_starts(buckets), np.int64), place_N, disk.empty),
            num_shingles_N=_by_source(buckets, "num_shingles", place_N, disk),
            folder=folder,
            buckets=tuple(buckets),
            num_bands=num_bands,
        )


def _by_source(
    buckets: Sequence[SketchedBucket], name: str, place_N: NDArray[np.int64], disk: DiskArrays
) -> NDArray[Any]:
    by_bucket = disk.joined((bucket.column(name) for bucket in buckets), COLUMNS[name])
    return gathered(by_bucket, place_N, disk.empty)


def _shingle_starts(buckets: Sequence[SketchedBucket]) -> Iterator[NDArray[np.int64]]:
    for bucket in buckets:
        counts_N = bucket.column("num_shingles")
        yield np.cumsum(counts_N) - counts_N


def _places(ordinals: NDArray[Any], disk: DiskArrays) -> NDArray[Any]:
    """Return `np.argsort(ordinals)` without holding it in memory. Ordinals are unique, with gaps."""
    num_ordinals = max((int(ordinals[chunk].max()) + 1 for chunk in chunks(len(ordinals))), default=0)
    place_of_ordinal, place_N = disk.empty(num_ordinals, np.int64), disk.empty(len(ordinals), np.int64)
    for chunk in chunks(len(ordinals)):
        place_of_ordinal[ordinals[chunk]] = np.arange(chunk.start, chunk.stop) + 1  # 0 marks an unused ordinal
    done = 0
    for chunk in chunks(num_ordinals):
        there = place_of_ordinal[chunk]
        there = there[there > 0] - 1
        place_N[done : done + len(there)] = there
        done += len(there)
    return place_N
