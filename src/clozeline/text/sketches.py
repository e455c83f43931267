"""Sketches of all texts on disk: bands, shingle sets, and a few numbers for each text."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from clozeline.storage.arrays import DiskArrays, chunks, gathered, mapped
from clozeline.text.exact_duplicates import SketchedBucket

_COLUMNS = {"ordinals": np.int64, "parents": np.int64, "draws": np.float64, "num_shingles": np.int64}


@dataclass(frozen=True)
class Sketches:
    """Sketches of N texts, numbered in the order of the source.

    `place_N` is the index of each text in bucket order. Band files hold one uint64 for each text, the shingle file the
    uint32 hashes of all texts; both are in bucket order.
    """

    place_N: NDArray[np.int64]
    parent_N: NDArray[np.int64]
    """Equal for the parts that were cut from one document."""
    draw_N: NDArray[np.float64]
    shingle_start_N: NDArray[np.int64]
    num_shingles_N: NDArray[np.int64]
    folder: Path
    """Folder of these files and of the files derived from them."""
    shingles: Path
    bands: list[Path]

    @property
    def num_texts(self) -> int:
        return len(self.place_N)


class SketchWriter:
    """Writes the sketched buckets in order."""

    def __init__(self, folder: Path, num_bands: int) -> None:
        folder.mkdir()
        self._folder = folder
        self._shingles = folder / "shingles.bin"
        self._bands = [folder / f"band-{band:03d}.bin" for band in range(num_bands)]
        self._open = ExitStack()
        self._shingle_file = self._open.enter_context(self._shingles.open("wb"))
        self._band_files = [self._open.enter_context(path.open("wb")) for path in self._bands]
        self._column_files = {name: self._open.enter_context(self._column(name).open("wb")) for name in _COLUMNS}
        self._num_ordinals = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def append(self, bucket: SketchedBucket) -> None:
        columns = {"ordinals": bucket.ordinals_N, "parents": bucket.parents_N, "draws": bucket.draws_N}
        for name, values_N in columns.items():
            np.ascontiguousarray(values_N, _COLUMNS[name]).tofile(self._column_files[name])
        for sets in bucket.shingles:
            sets.hashes_S.tofile(self._shingle_file)
            sets.counts_N.tofile(self._column_files["num_shingles"])
            for file, band_N in zip(self._band_files, sets.bands_NB.T, strict=True):
                np.ascontiguousarray(band_N).tofile(file)
        self._num_ordinals = max(self._num_ordinals, int(bucket.ordinals_N.max(initial=-1)) + 1)

    def finish(self) -> Sketches:
        self._open.close()
        empty = DiskArrays(self._folder).empty
        by_bucket = {name: mapped(self._column(name), kind) for name, kind in _COLUMNS.items()}
        place_N = self._places(by_bucket["ordinals"])
        start = empty(len(place_N), np.int64)
        total = 0
        for chunk in chunks(len(place_N)):
            ends = total + np.cumsum(by_bucket["num_shingles"][chunk])
            start[chunk] = ends - by_bucket["num_shingles"][chunk]
            total = int(ends[-1])
        return Sketches(
            place_N=place_N,
            parent_N=gathered(by_bucket["parents"], place_N, empty),
            draw_N=gathered(by_bucket["draws"], place_N, empty),
            shingle_start_N=gathered(start, place_N, empty),
            num_shingles_N=gathered(by_bucket["num_shingles"], place_N, empty),
            folder=self._folder,
            shingles=self._shingles,
            bands=self._bands,
        )

    def _places(self, ordinals: NDArray[Any]) -> NDArray[Any]:
        """Return `np.argsort(ordinals)` without holding it in memory. Ordinals are unique, with gaps."""
        empty = DiskArrays(self._folder).empty
        place_of_ordinal, place_N = empty(self._num_ordinals, np.int64), empty(len(ordinals), np.int64)
        for chunk in chunks(len(ordinals)):
            place_of_ordinal[ordinals[chunk]] = np.arange(chunk.start, chunk.stop) + 1  # 0 marks an unused ordinal
        done = 0
        for chunk in chunks(self._num_ordinals):
            there = place_of_ordinal[chunk]
            there = there[there > 0] - 1
            place_N[done : done + len(there)] = there
            done += len(there)
        return place_N

    def _column(self, name: str) -> Path:
        return self._folder / f"{name}.bin"
