"""The most frequent words of the text that a vocabulary is learned from, counted exactly, in memory that does not grow.

Each partition is counted by itself; its words go into a file, in as many buckets by their hash as the text needs. All
counts of a word meet in one bucket, so the most frequent words of the text are among the most frequent ones of the
buckets.

Shapes: U distinct words, W words of some texts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from clozeline.cluster.ledger import Done, Item, Ledger
from clozeline.records.words.bytes import word_hashes
from clozeline.system.progress import track
from clozeline.tokenizing.encoding import Cut, WordCache

# Arrow file of words and counts; that of a partition has a record batch for each bucket.
WORDS = "words.arrow"
CHARACTERS = "characters.npy"
MOST_WORDS = 2**15
# Words with a count that are held before equal ones are summed.
_MOST_ROWS = 2**18
_MOST_BUCKETS = 2**8
# A bucket has about as many words as so many partitions.
_PARTITIONS_A_BUCKET = 2
NUM_CODE_POINTS = 0x110000
_CHARACTERS_A_TEXT = 2000
_TEXTS_A_BATCH = 100


@dataclass(frozen=True)
class FrequentWords:
    """Words, most frequent first; equally frequent ones in the order of their letters."""

    words: Sequence[str]
    count_U: npt.NDArray[np.int64]

    @classmethod
    def of(cls, counts: dict[str, int]) -> Self:
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls([word for word, _ in ordered], np.array([count for _, count in ordered], np.int64))

    def as_texts(self) -> Iterator[list[str]]:
        """Yield batches of texts in which each word occurs as often as it was counted, separated by blanks."""
        texts = self._texts()
        while batch := list(islice(texts, _TEXTS_A_BATCH)):
            yield batch

    def _texts(self) -> Iterator[str]:
        for word, count in zip(self.words, self.count_U.tolist(), strict=True):
            at_a_time = max(_CHARACTERS_A_TEXT // (len(word) + 1), 1)
            for done in range(0, count, at_a_time):
                yield " ".join([word] * min(at_a_time, count - done))


class CountedTexts(Protocol):
    """Texts that are counted as one partition."""

    @property
    def digest(self) -> str:
        """Digest of the texts."""

    @property
    def reads(self) -> Sequence[Path]:
        """Files that the texts are read from."""

    def texts(self) -> Iterator[Sequence[str]]:
        """Start a pass over the texts, in batches."""


def digest_of(parts: Iterable[str]) -> str:
    return blake2b(" ".join(parts).encode(), digest_size=16).hexdigest()


def num_buckets_for(num_partitions: int) -> int:
    """Return a power of two that grows with the text, so that the size of a bucket does not."""
    return min(1 << ((num_partitions - 1) // _PARTITIONS_A_BUCKET).bit_length(), _MOST_BUCKETS)


def count_partition(partition: CountedTexts, tokenizer: Tokenizer, num_buckets: int, folder: Path) -> Done:
    """Count words and characters of a partition. `tokenizer`, which needs no vocabulary, cuts texts into words."""
    counted, characters = _Sum(), np.zeros(NUM_CODE_POINTS, np.int64)
    cut = WordCache.create(tokenizer).cut
    for batch in partition.texts():
        counted.add(_counted(batch, cut))
        code_points = np.frombuffer("".join(batch).encode("utf-32-le"), dtype=np.uint32)
        characters += np.bincount(code_points, minlength=NUM_CODE_POINTS)
    _write(counted.table(), num_buckets, folder / WORDS)
    present = np.flatnonzero(characters)
    np.save(folder / CHARACTERS, np.stack([present, characters[present]]), allow_pickle=False)
    return Done()


def add_characters(folder: Path, counts: npt.NDArray[np.int64]) -> None:
    """Add the characters of a counted partition to `counts`, which has a place for each code point."""
    code_points, here = np.load(folder / CHARACTERS, allow_pickle=False)
    counts[code_points] += here


def count_bucket(files: Sequence[Path], bucket: int, most_words: int, folder: Path) -> Done:
    """Write the `most_words` most frequent words of a bucket with their counts over all partitions' files of words."""
    counted = _Sum()
    for path in files:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
            counted.add(pa.Table.from_batches([file.get_batch(bucket)]))
    _write(_most_frequent(counted.table(), most_words), 1, folder / WORDS)
    return Done()


def merged(buckets: Iterable[Path], most_words: int) -> FrequentWords:
    """Return the `most_words` most frequent words of all buckets, whose folders are given."""
    tables = []
    for folder in buckets:
        with pa.memory_map(str(folder / WORDS)) as source, pa.ipc.open_file(source) as file:
            tables.append(file.read_all())
    kept = _most_frequent(pa.concat_tables(tables), most_words)
    return FrequentWords(kept["word"].to_pylist(), kept["count"].to_numpy())


class _Sum:
    """Words with their counts, of which equal ones are summed now and then."""

    def __init__(self) -> None:
        self._tables = [_table([], [])]
        self._num_rows = 0

    def add(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._num_rows += len(table)
        if self._num_rows > _MOST_ROWS:
            self._tables, self._num_rows = [self.table()], 0

    def table(self) -> pa.Table:
        summed = pa.concat_tables(self._tables).group_by("word", use_threads=False).aggregate([("count", "sum")])
        return summed.rename_columns(["word", "count"])


def _counted(batch: Sequence[str], cut: Cut) -> pa.Table:
    found = cut(pa.array(batch, pa.string()))
    return _table(found.distinct_U, np.bincount(found.index_W, minlength=len(found.distinct_U)))


def _table(words_U: Any, count_U: Any) -> pa.Table:
    return pa.table({"word": pa.array(words_U, pa.string()), "count": pa.array(count_U, pa.int64())})


def _write(counted: pa.Table, num_buckets: int, out: Path) -> None:
    bucket_U = (word_hashes(counted["word"].combine_chunks()) % np.uint64(num_buckets)).astype(np.int64)
    ordered = counted.take(pa.array(np.argsort(bucket_U, kind="stable"))).combine_chunks()
    ends = np.cumsum(np.bincount(bucket_U, minlength=num_buckets)).tolist()
    words, counts = (ordered[name].combine_chunks() for name in ordered.column_names)
    with pa.OSFile(str(out), "wb") as sink, pa.ipc.new_file(sink, counted.schema) as file:
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            columns = [words.slice(start, end - start), counts.slice(start, end - start)]
            file.write_batch(pa.record_batch(columns, schema=counted.schema))


def _most_frequent(counted: pa.Table, number: int) -> pa.Table:
    ordered = counted.sort_by([("count", "descending"), ("word", "ascending")])
    return ordered.slice(0, number)


@dataclass(frozen=True)
class CountedText:
    code_point_counts: npt.NDArray[np.int64]  # number of times that each code point occurs
    words: FrequentWords


@dataclass(frozen=True)
class TrainingText:
    """The text to learn from, in partitions."""

    partitions: Sequence[CountedTexts]
    ledger: Ledger

    def batches(self) -> Iterator[Sequence[str]]:
        """Yield the texts of all partitions."""
        parts = track(self.partitions, "learn vocabulary", len(self.partitions))
        return chain.from_iterable(partition.texts() for partition in parts)

    def counted(self, tokenizer: Tokenizer) -> CountedText:
        """Count characters and words, cut as `tokenizer` needs it; a partition, then a bucket, is a task."""
        num_buckets, words_of = num_buckets_for(len(self.partitions)), digest_of([tokenizer.to_str()])
        partitions = [
            Item(
                f"partition {number}",
                [partition.digest, words_of, num_buckets],
                partition.reads,
                partial(count_partition, partition, tokenizer, num_buckets),
            )
            for number, partition in enumerate(self.partitions)
        ]
        records = self.ledger.run_all(partitions, "count words", read=(CHARACTERS,))
        counts = np.zeros(NUM_CODE_POINTS, dtype=np.int64)
        for record in records:
            add_characters(record.folder, counts)
        # A list of the partitions in the inputs of each bucket would grow with the square of the text.
        files, digest = [record.folder / WORDS for record in records], digest_of(record.key for record in records)
        buckets = [
            Item(
                f"bucket {bucket} of counts",
                [digest, bucket, MOST_WORDS],
                files,
                partial(count_bucket, files, bucket, MOST_WORDS),
            )
            for bucket in range(num_buckets)
        ]
        summed = self.ledger.run_all(buckets, "sum counts")
        return CountedText(counts, merged((record.folder for record in summed), MOST_WORDS))
