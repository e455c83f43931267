"""The sketches of all texts: bands and shingle sets on disk, a few numbers for each text in memory."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from clozeline.text.exact_duplicates import SketchedBucket


@dataclass(frozen=True)
class Sketches:
    """N texts, numbered by their place in the source, earliest first; `place_N` says where each is in the buckets.

    Band files hold one uint64 for each text, the shingle file the uint32 hashes of all; both in bucket order.
    """

    place_N: NDArray[np.int64]
    parent_N: NDArray[np.int64]
    """Equal for the parts that were cut from one document."""
    draw_N: NDArray[np.float64]
    shingle_start_N: NDArray[np.int64]
    num_shingles_N: NDArray[np.int64]
    shingles: Path
    bands: list[Path]

    @property
    def num_texts(self) -> int:
        return len(self.place_N)


class SketchWriter:
    """Takes the sketched buckets in order."""

    def __init__(self, folder: Path, num_bands: int) -> None:
        folder.mkdir()
        self._shingles = folder / "shingles.bin"
        self._bands = [folder / f"band-{band:03d}.bin" for band in range(num_bands)]
        self._open = ExitStack()
        self._shingle_file = self._open.enter_context(self._shingles.open("wb"))
        self._band_files = [self._open.enter_context(path.open("wb")) for path in self._bands]
        self._buckets: list[SketchedBucket] = []
        self._num_shingles: list[NDArray[np.int64]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def append(self, bucket: SketchedBucket) -> None:
        for sets in bucket.shingles:
            sets.hashes_S.tofile(self._shingle_file)
            for file, band_N in zip(self._band_files, sets.bands_NB.T, strict=True):
                np.ascontiguousarray(band_N).tofile(file)
            self._num_shingles.append(sets.counts_N)
        bucket.shingles.clear()
        self._buckets.append(bucket)

    def finish(self) -> Sketches:
        self._open.close()
        place_N = np.argsort(np.concatenate([bucket.ordinals_N for bucket in self._buckets]))
        num_shingles_N = np.concatenate(self._num_shingles)
        shingle_start_N = np.cumsum(num_shingles_N) - num_shingles_N
        return Sketches(
            place_N=place_N,
            parent_N=np.concatenate([bucket.parents_N for bucket in self._buckets])[place_N],
            draw_N=np.concatenate([bucket.draws_N for bucket in self._buckets])[place_N],
            shingle_start_N=shingle_start_N[place_N],
            num_shingles_N=num_shingles_N[place_N],
            shingles=self._shingles,
            bands=self._bands,
        )
