"""The exchange: batches of texts, written anew so that each bucket's texts lie together."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from clozeline.cluster.ledger import Done
from clozeline.text.batches import BatchRecord
from clozeline.text.buckets import bucket_starts
from clozeline.text.preparation import PREPARED
from clozeline.text.texts_on_disk import read_texts, write_texts

SPREAD: Final = "texts.arrow"
"""One record batch for each bucket that has texts."""


_SPREAD_BYTES = 16_000_000
"""Approximate size in memory of the texts of one task."""


@dataclass(frozen=True)
class SpreadItem:
    number: int
    batches: tuple[BatchRecord, ...]
    """Consecutive batches."""
    first_ordinals: tuple[int, ...]
    """Ordinal in the source of the first text of each batch."""
    num_buckets: int

    @property
    def name(self) -> str:
        return f"group {self.number} of batches"

    @property
    def inputs(self) -> list[object]:
        return [[batch.key for batch in self.batches], self.first_ordinals[0], self.num_buckets]

    @property
    def reads(self) -> list[Path]:
        return [batch.texts for batch in self.batches]


def spread_items(batches: Sequence[BatchRecord], num_buckets: int) -> list[SpreadItem]:
    """Group consecutive batches by the size of their texts."""
    first_ordinals = list(accumulate((batch.counts.num_ordinals for batch in batches), initial=0))
    sizes = accumulate(batch.text_bytes for batch in batches)
    placed = zip(batches, first_ordinals[:-1], sizes, strict=True)
    groups = [list(group) for _, group in groupby(placed, lambda one: one[2] // _SPREAD_BYTES)]
    return [
        SpreadItem(number, tuple(one[0] for one in group), tuple(one[1] for one in group), num_buckets)
        for number, group in enumerate(groups)
    ]


def spread(item: SpreadItem, folder: Path) -> Done:
    """Number the texts as in the source, and write them bucket by bucket; the facts are the numbers of the buckets."""
    numbered = [_numbered(batch.texts, first) for batch, first in zip(item.batches, item.first_ordinals, strict=True)]
    starts = [bucket_starts(texts["key"].to_pylist(), item.num_buckets) for texts in numbered]
    found: list[int] = []
    tables = []
    for bucket in range(item.num_buckets):
        parts = [
            texts.slice(some[bucket], some[bucket + 1] - some[bucket])
            for texts, some in zip(numbered, starts, strict=True)
        ]
        if any(map(len, parts)):
            found.append(bucket)
            tables.append(pa.concat_tables(parts))
    if tables:
        write_texts(folder / SPREAD, tables)
    return Done(found)


def _numbered(path: Path, first_ordinal: int) -> pa.Table:
    texts = read_texts(path)
    for name in ("ordinal", "parent"):
        place = texts.schema.get_field_index(name)
        texts = texts.set_column(place, PREPARED.field(name), pc.add(texts.column(place), first_ordinal))
    return texts
