"""Buckets of texts: texts with equal keys meet in one bucket, and a bucket fits in memory.

A bucket is a range of keys. Texts ordered by bucket, then by key, are therefore in the order of their keys for any
number of buckets. An exchange writes batches of texts anew so that each bucket's texts lie together. Then exact
duplicates are removed from each bucket, and its sketches for finding near-duplicates (columns of numbers, shingle sets
and bands) are taken out into files.

Suffixes of names give the shape: N texts of the bucket, B bands, S shingles.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import accumulate, groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import DTypeLike, NDArray

from clozeline.cluster.ledger import Done, FinishedTask, Item
from clozeline.corpus.cleaning import preparation
from clozeline.records.words.shingles import ShingleSets

# Approximate size of a bucket in bytes of raw text.
_BUCKET_BYTES = 1_500_000
_FEWEST, _MOST, _UNKNOWN = 8, 2**16, 128
# Most raw text whose clean text is in one file of each split.
_FILE_BYTES = 500_000_000
_PREFIX_VALUES = 2**16

# One record batch for each bucket that has texts.
SPREAD = "texts.arrow"

# Approximate size in memory of the texts of one task.
_SPREAD_BYTES = 16_000_000

COLUMNS: Mapping[str, DTypeLike] = {
    "ordinals": np.int64,
    "parents": np.int64,
    "draws": np.float64,
    "num_shingles": np.int64,
}
FILES_OF_COLUMNS = tuple(f"{name}.bin" for name in COLUMNS)
_SHINGLES, _BANDS = "shingles.bin", "bands.bin"

SORTED = "texts.arrow"


def num_buckets_for(total_bytes: int) -> int:
    """Return a power of two that grows with the source, so that the size of a bucket does not; 0 bytes mean unknown."""
    if not total_bytes:
        return _UNKNOWN
    return min(max(1 << (total_bytes // _BUCKET_BYTES).bit_length(), _FEWEST), _MOST)


def num_ranges_for(total_bytes: int) -> int:
    """Return the number of ranges of keys with a file of each split each: a power of two, at most that of buckets."""
    return min(1 << (total_bytes // _FILE_BYTES).bit_length(), num_buckets_for(total_bytes))


def bucket_starts(sorted_keys: Sequence[bytes], num_buckets: int) -> list[int]:
    """Return the bounds of the buckets: bucket b is `keys[starts[b] : starts[b + 1]]`.

    The first two bytes of a key decide its bucket.
    """
    assert _PREFIX_VALUES % num_buckets == 0, num_buckets
    width = _PREFIX_VALUES // num_buckets
    inner = (bisect_left(sorted_keys, (bucket * width).to_bytes(2, "big")) for bucket in range(1, num_buckets))
    return [0, *inner, len(sorted_keys)]


def spread_items(batches: Sequence[preparation.BatchRecord], num_buckets: int) -> list[Item]:
    """Return tasks that spread consecutive batches, grouped by the size of their texts."""
    first_ordinals = accumulate((batch.counts.num_ordinals for batch in batches), initial=0)
    sizes = accumulate(batch.text_bytes for batch in batches)
    placed = zip(batches, first_ordinals, sizes, strict=False)  # the last ordinal is that of the end
    items = []
    for number, (_, group) in enumerate(groupby(placed, lambda one: one[2] // _SPREAD_BYTES)):
        some = [(batch, first_ordinal) for batch, first_ordinal, _ in group]
        inputs = [[batch.key for batch, _ in some], some[0][1], num_buckets]
        texts = [(batch.texts, first_ordinal) for batch, first_ordinal in some]
        reads = [path for path, _ in texts]
        items.append(Item(f"group {number} of batches", inputs, reads, partial(spread, texts, num_buckets)))
    return items


def spread(batches: Sequence[tuple[Path, int]], num_buckets: int, folder: Path) -> Done:
    """Number the texts as in the source, and write them bucket by bucket; the facts are the numbers of the buckets.

    A batch is its file and the ordinal in the source of its first text.
    """
    numbered = [_numbered(path, first_ordinal) for path, first_ordinal in batches]
    starts = [bucket_starts(texts["key"].to_pylist(), num_buckets) for texts in numbered]
    found: list[int] = []
    tables = []
    for bucket in range(num_buckets):
        parts = [
            texts.slice(some[bucket], some[bucket + 1] - some[bucket])
            for texts, some in zip(numbered, starts, strict=True)
        ]
        if any(map(len, parts)):
            found.append(bucket)
            tables.append(pa.concat_tables(parts))
    if tables:
        preparation.write_texts(folder / SPREAD, tables)
    return Done(found)


def _numbered(path: Path, first_ordinal: int) -> pa.Table:
    texts = preparation.read_texts(path)
    for name in ("ordinal", "parent"):
        place = texts.schema.get_field_index(name)
        texts = texts.set_column(place, preparation.PREPARED.field(name), pc.add(texts.column(place), first_ordinal))
    return texts


@dataclass(frozen=True)
class SketchedBucket:
    """A bucket whose sketches are in a folder, in the order of its texts' keys."""

    key: str  # key of the task that wrote the folder: equal for equal content
    folder: Path
    num_texts: int
    number: int  # the range of its keys, of all buckets

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


def sort_item(number: int, spreads: Sequence[tuple[FinishedTask, int]], seed: int) -> Item:
    """Return the task that sorts a bucket.

    Args:
        spreads: tasks that have texts of the bucket, and the number of the record batch with these texts.
    """
    files = [(record.folder / SPREAD, part) for record, part in spreads]
    inputs = [seed, [(record.key, part) for record, part in spreads]]
    return Item(f"bucket {number}", inputs, [path for path, _ in files], partial(sort_bucket, files, seed))


def sort_bucket(files: Sequence[tuple[Path, int]], seed: int, folder: Path) -> Done:
    """Sort a bucket by key, keep the earliest of equal texts, and write texts and sketches apart.

    The facts are the number of texts and of exact duplicates.
    """
    texts = pa.concat_tables(preparation.read_texts(path, [part]) for path, part in files)
    texts = texts.sort_by([("key", "ascending"), ("ordinal", "ascending")]).combine_chunks()
    kept = texts.filter(pa.array(_first_of_equal(texts["key"])))
    preparation.write_texts(folder / SORTED, [preparation.without_sketches(kept)])
    draws_N = np.array([draw(seed, key) for key in kept["key"].to_pylist()])
    ordinals_N, parents_N = (kept[name].to_numpy() for name in ("ordinal", "parent"))
    write_bucket_sketches(folder, ordinals_N, parents_N, draws_N, preparation.sketches_of(kept))
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
