"""The text that a vocabulary is learned from, and its counts over all partitions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from clozeline.progress import track
from clozeline.tokenizing.frequent_words import (
    MOST_WORDS,
    NUM_CODE_POINTS,
    BucketTask,
    CountTask,
    FrequentWords,
    TextBatches,
    count_bucket,
    count_partition,
    merged,
    num_buckets_for,
)
from clozeline.tokenizing.partitions import Spread


@dataclass(frozen=True)
class CountedText:
    code_point_counts: npt.NDArray[np.int64]
    """Number of times that each code point occurs."""
    words: FrequentWords


@dataclass(frozen=True)
class TrainingText:
    """The text to learn from, in partitions."""

    partitions: Sequence[TextBatches]
    spread: Spread
    folder: Path
    """Folder of files between the tasks."""

    def batches(self) -> Iterator[Sequence[str]]:
        """Yield the texts of all partitions."""
        parts = track(self.partitions, "learn vocabulary", len(self.partitions))
        return chain.from_iterable(batches() for batches in parts)

    def counted(self, tokenizer: Tokenizer) -> CountedText:
        """Count characters and words, cut as `tokenizer` needs it; a partition, then a bucket, is a task."""
        num_buckets, number = num_buckets_for(len(self.partitions)), len(self.partitions)
        tasks = [
            CountTask(batches, tokenizer, num_buckets, self.folder / f"{ordinal}.arrow")
            for ordinal, batches in enumerate(self.partitions)
        ]
        raw = np.zeros(NUM_CODE_POINTS, dtype=np.int64)
        files = []
        for counted in track(self.spread(count_partition, tasks), "count words", number):
            raw[counted.code_points] += counted.code_point_counts
            files.append(counted.words)
        buckets = [BucketTask(tuple(files), bucket, MOST_WORDS) for bucket in range(num_buckets)]
        return CountedText(raw, merged(self.spread(count_bucket, buckets), MOST_WORDS))
