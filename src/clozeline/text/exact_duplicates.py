"""Work on one bucket of texts: remove exact duplicates, and take out the sketches for finding near-duplicates."""

from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clozeline.cluster.ledger import Done
from clozeline.text.sketch_columns import sketches_of, without_sketches
from clozeline.text.sketched_buckets import write_bucket_sketches
from clozeline.text.texts_on_disk import read_texts, write_texts

SORTED: Final = "texts.arrow"


@dataclass(frozen=True)
class BucketItem:
    number: int
    seed: int
    spreads: list[tuple[str, Path, int]] = field(default_factory=list)
    """Files that have texts of the bucket: key of the task, path, and number of the record batch with these texts."""

    @property
    def name(self) -> str:
        return f"bucket {self.number}"

    @property
    def inputs(self) -> list[object]:
        return [self.seed, [(key, part) for key, _, part in self.spreads]]

    @property
    def reads(self) -> list[Path]:
        return [path for _, path, _ in self.spreads]


def sort_bucket(item: BucketItem, folder: Path) -> Done:
    """Sort a bucket by key, keep the earliest of equal texts, and write texts and sketches apart.

    The facts are the number of texts and of exact duplicates.
    """
    texts = pa.concat_tables(read_texts(path, [part]) for _, path, part in item.spreads)
    texts = texts.sort_by([("key", "ascending"), ("ordinal", "ascending")]).combine_chunks()
    kept = texts.filter(pa.array(_first_of_equal(texts["key"])))
    write_texts(folder / SORTED, [without_sketches(kept)])
    draws_N = np.array([draw(item.seed, key) for key in kept["key"].to_pylist()])
    ordinals_N, parents_N = (kept[name].to_numpy() for name in ("ordinal", "parent"))
    write_bucket_sketches(folder, ordinals_N, parents_N, draws_N, sketches_of(kept))
    return Done([len(kept), len(texts) - len(kept)])


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
