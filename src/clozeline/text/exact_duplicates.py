"""Work on one bucket of texts: remove exact duplicates, and take out the sketches for finding near-duplicates."""

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clozeline.text.sketch_columns import sketches_of, without_sketches
from clozeline.text.spool import read_bucket, write_bucket
from clozeline.words.shingles import ShingleSets

_SKETCH_BYTES = 400_000


@dataclass(frozen=True)
class BucketTask:
    path: Path
    seed: int


@dataclass(frozen=True)
class SketchedBucket:
    """Data of a bucket's texts for the later steps, in the order of their keys (N texts, B bands)."""

    num_exact_duplicates: int
    ordinals_N: NDArray[np.int64]
    parents_N: NDArray[np.int64]
    draws_N: NDArray[np.float64]
    shingles: list[ShingleSets]


def sort_bucket(task: BucketTask) -> SketchedBucket:
    """Sort a bucket by key, keep the earliest of equal texts, and write them back without their sketches."""
    texts = read_bucket(task.path)
    texts = texts.sort_by([("key", "ascending"), ("ordinal", "ascending")]).combine_chunks()
    kept = texts.filter(pa.array(_first_of_equal(texts["key"])))
    write_bucket(task.path, without_sketches(kept))
    return SketchedBucket(
        num_exact_duplicates=len(texts) - len(kept),
        ordinals_N=kept["ordinal"].to_numpy(),
        parents_N=kept["parent"].to_numpy(),
        draws_N=np.array([draw(task.seed, key) for key in kept["key"].to_pylist()]),
        shingles=[sketches_of(kept)],
    )


def draw(seed: int, key: bytes) -> float:
    """Return a number in [0, 1) that depends only on the seed and on the content of the text."""
    digest = blake2b(b"%d:" % seed + key, digest_size=6).digest()
    return int.from_bytes(digest, "little") / 2**48


def _first_of_equal(keys: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return whether each of the sorted keys differs from the one before."""
    first = np.ones(len(keys), dtype=bool)
    if len(keys) > 1:
        first[1:] = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    return first
