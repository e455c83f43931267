"""Ranges of keys: the kept texts of consecutive buckets, which go into one file of each split."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clozeline.artifacts.preprocess.corpus_metrics import SplitMetrics
from clozeline.cluster.ledger import Done, Record
from clozeline.text.clean_writer import CleanWriter
from clozeline.text.exact_duplicates import SORTED
from clozeline.text.sketched_buckets import SketchedBucket
from clozeline.text.texts_on_disk import read_texts

_SOURCES: Final = "sources.json"
"""Labels of the texts of each split."""


@dataclass(frozen=True, eq=False)
class RangeItem:
    """Buckets of N texts."""

    number: int
    buckets: tuple[SketchedBucket, ...]
    kept_N: NDArray[np.bool_]
    sides_N: NDArray[np.uint8]
    """Number of the split of each text."""

    @property
    def name(self) -> str:
        return f"range {self.number} of keys"

    @property
    def inputs(self) -> list[object]:
        fate = blake2b(self.kept_N.tobytes() + self.sides_N.tobytes(), digest_size=16)
        return [[bucket.key for bucket in self.buckets], fate.hexdigest()]

    @property
    def reads(self) -> list[Path]:
        return [bucket.folder / SORTED for bucket in self.buckets]


@dataclass
class Sizes:
    """Size of a split, added up over ranges."""

    documents: int = 0
    characters: int = 0
    bytes: int = 0
    sources: set[str] = field(default_factory=set)

    def add(self, record: Record, split: str) -> None:
        documents, characters, num_bytes = record.facts[split]
        self.documents += documents
        self.characters += characters
        self.bytes += num_bytes
        self.sources.update(json.loads((record.folder / _SOURCES).read_bytes())[split])

    def metrics(self) -> SplitMetrics:
        return SplitMetrics(
            documents=self.documents, characters=self.characters, bytes=self.bytes, sources=len(self.sources)
        )


def range_items(
    buckets: Sequence[SketchedBucket], kept_N: NDArray[np.bool_], sides_N: NDArray[np.uint8], buckets_of_range: int
) -> list[RangeItem]:
    """Return the ranges that have texts. The buckets that have any are given in order, with the fates of all N texts.

    Args:
        buckets_of_range: number of buckets of a range, with those that are empty.
    """
    items, start = [], 0
    for number, group in groupby(buckets, lambda bucket: bucket.number // buckets_of_range):
        some = tuple(group)
        end = start + sum(bucket.num_texts for bucket in some)
        items.append(RangeItem(number, some, np.array(kept_N[start:end]), np.array(sides_N[start:end])))
        start = end
    assert start == len(kept_N), (start, len(kept_N))
    return items


def write_range(item: RangeItem, folder: Path) -> Done:
    """Write one file of each split; the facts are the texts, characters and bytes of each."""
    done = 0
    with CleanWriter(folder) as clean:
        for bucket in item.buckets:
            chosen = slice(done, done + bucket.num_texts)
            kept_N = item.kept_N[chosen]
            clean.append(read_texts(bucket.folder / SORTED).filter(kept_N), item.sides_N[chosen][kept_N])
            done += bucket.num_texts
    sources = {split: sorted(part.sources) for split, part in clean.parts.items()}
    (folder / _SOURCES).write_text(json.dumps(sources), encoding="utf-8")
    return Done({split: [part.documents, part.characters, part.bytes] for split, part in clean.parts.items()})
