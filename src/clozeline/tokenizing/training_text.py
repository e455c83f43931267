"""The text that a vocabulary is learned from, and its counts over all partitions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from clozeline.cluster.ledger import Ledger
from clozeline.progress import track
from clozeline.tokenizing.frequent_words import (
    CHARACTERS,
    MOST_WORDS,
    NUM_CODE_POINTS,
    BucketItem,
    CountItem,
    FrequentWords,
    Texts,
    add_characters,
    count_bucket,
    count_partition,
    digest_of,
    merged,
    num_buckets_for,
)


@dataclass(frozen=True)
class CountedText:
    code_point_counts: npt.NDArray[np.int64]
    """Number of times that each code point occurs."""
    words: FrequentWords


@dataclass(frozen=True)
class TrainingText:
    """The text to learn from, in partitions."""

    partitions: Sequence[Texts]
    ledger: Ledger

    def batches(self) -> Iterator[Sequence[str]]:
        """Yield the texts of all partitions."""
        parts = track(self.partitions, "learn vocabulary", len(self.partitions))
        return chain.from_iterable(partition.texts() for partition in parts)

    def counted(self, tokenizer: Tokenizer) -> CountedText:
        """Count characters and words, cut as `tokenizer` needs it; a partition, then a bucket, is a task."""
        num_buckets = num_buckets_for(len(self.partitions))
        items = [
            CountItem(number, partition, tokenizer, num_buckets) for number, partition in enumerate(self.partitions)
        ]
        records = self.ledger.run_all(count_partition, items, "count words", read=(CHARACTERS,))
        counts = np.zeros(NUM_CODE_POINTS, dtype=np.int64)
        for record in records:
            add_characters(record.folder, counts)
        folders, digest = tuple(record.folder for record in records), digest_of(record.key for record in records)
        buckets = [BucketItem(folders, digest, bucket, MOST_WORDS) for bucket in range(num_buckets)]
        summed = self.ledger.run_all(count_bucket, buckets, "sum counts")
        return CountedText(counts, merged((record.folder for record in summed), MOST_WORDS))
