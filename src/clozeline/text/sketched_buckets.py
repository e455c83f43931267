"""Files of one bucket's sketches: columns of numbers, shingle sets, and bands.

Suffixes of names give the shape: N texts of the bucket, B bands, S shingles.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from clozeline.words.shingles import ShingleSets

COLUMNS: Mapping[str, DTypeLike] = MappingProxyType(
    {"ordinals": np.int64, "parents": np.int64, "draws": np.float64, "num_shingles": np.int64}
)
FILES_OF_COLUMNS: Final = tuple(f"{name}.bin" for name in COLUMNS)
_SHINGLES, _BANDS = "shingles.bin", "bands.bin"


@dataclass(frozen=True)
class SketchedBucket:
    """A bucket whose sketches are in a folder, in the order of its texts' keys."""

    key: str
    """Key of the task that wrote the folder: equal for equal content."""
    folder: Path
    num_texts: int
    number: int
    """The range of its keys, of all buckets."""

    @property
    def shingles(self) -> Path:
        """File of the uint32 hashes of all sets, one set after the other."""
        return self.folder / _SHINGLES

    @property
    def bands(self) -> Path:
        """File of the hashes of all bands, one band after the other."""
        return self.folder / _BANDS

    def column(self, name: str) -> NDArray[np.generic]:
        """Return one of `COLUMNS`: [N]."""
        return np.fromfile(self.folder / f"{name}.bin", COLUMNS[name])

    def band(self, number: int) -> NDArray[np.uint64]:
        """Return the hashes of one band: uint64 [N]."""
        of_band = self.num_texts * 8
        return np.fromfile(self.bands, np.uint64, self.num_texts, offset=number * of_band)


def write_bucket_sketches(
    folder: Path,
    ordinals_N: NDArray[np.int64],
    parents_N: NDArray[np.int64],
    draws_N: NDArray[np.float64],
    sets: ShingleSets,
) -> None:
    columns = zip(COLUMNS.items(), (ordinals_N, parents_N, draws_N, sets.counts_N), strict=True)
    for (name, kind), values_N in columns:
        np.ascontiguousarray(values_N, kind).tofile(folder / f"{name}.bin")
    sets.hashes_S.tofile(folder / _SHINGLES)
    np.ascontiguousarray(sets.bands_NB.T).tofile(folder / _BANDS)
