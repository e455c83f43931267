"""Encode a partition of clean text into files of ids. Memory holds a few batches, and two numbers of each document.

Shapes: D documents of a batch, N their tokens, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from clozeline.artifacts.preprocess.clean_text import TEXT
from clozeline.tokenizer.folder import OpenTokenizer
from clozeline.tokenizing.earlier_ids import EarlierIds, Found
from clozeline.tokenizing.partitions import Partition
from clozeline.tokenizing.shards import EncodedFiles, EncodedWriter
from clozeline.tokenizing.word_cache import WordCache
from clozeline.tokenizing.word_encoding import Encoded
from clozeline.words.as_bytes.cutting import CutTexts, text_bytes

Item = TypeVar("Item")


@dataclass
class PackingCount:
    """Counts of texts: tokens in = tokens packed + tokens dropped."""

    vocab_size: int
    num_documents: int = 0
    num_empty_documents: int = 0
    text_bytes: int = 0
    tokens_in: int = 0
    tokens_packed: int = 0
    tokens_dropped: int = 0
    """Special tokens that the tokenizer found in raw text."""
    special_strings_in_text: int = 0
    """Occurrences of `[MASK]` or another special token written out in a text; they are packed as ordinary text."""
    uses_V: npt.NDArray[np.int64] = field(init=False)
    """Number of times each id was packed."""

    def __post_init__(self) -> None:
        self.uses_V = np.zeros(self.vocab_size, dtype=np.int64)

    def __iadd__(self, other: Self) -> Self:
        for name, value in vars(other).items():
            if name != "vocab_size":
                setattr(self, name, getattr(self, name) + value)
        return self


@dataclass(frozen=True)
class EncodeTask:
    partition: Partition
    tokenizer: Path
    """Folder of the tokenizer."""
    sha256: str
    """Hash of the tokenizer."""
    files: EncodedFiles
    earlier: EarlierIds | None


@dataclass(frozen=True)
class EncodedPartition:
    count: PackingCount
    found: Found


def encode_partition(task: EncodeTask) -> EncodedPartition:
    """Write the ids of a partition's texts to `task.files`.

    Raises:
        ArtifactError: the file of texts is damaged, or lacks a column.
    """
    opened, words = _opened(task.tokenizer, task.sha256)
    count, found = PackingCount(opened.vocab_size), Found()
    forbidden_V = np.zeros(opened.vocab_size, dtype=bool)
    forbidden_V[[id_ for id_ in opened.special_ids.every if id_ != opened.special_ids.unk]] = True
    with EncodedWriter(task.files) as writer:
        for column, encoded in _encoded(task, words, found):
            _append(column, encoded, forbidden_V, writer, count)
            count.special_strings_in_text += _occurrences(column, opened.special_strings)
    return EncodedPartition(count, found)


@lru_cache(maxsize=1)
def _opened(folder: Path, sha256: str) -> tuple[OpenTokenizer, WordCache]:
    """Return the tokenizer of this process with the words that it has encoded, which the next partition repeats."""
    opened = OpenTokenizer.open(folder)
    assert opened.sha256 == sha256, folder
    return opened, WordCache.create(opened.tokenizer)


def _encoded(task: EncodeTask, words: WordCache, found: Found) -> Iterator[tuple[Any, Encoded]]:
    """Yield columns of texts with their ids; where there are earlier ids, only those of new texts are computed."""
    if task.earlier is None:
        columns = ((column, column) for (column,) in task.partition.columns(TEXT))
        yield from _looked_up(columns, words)
        return
    parts = ((part, part.new) for part in task.earlier.parts_of(task.partition))
    for part, encoded in _looked_up(parts, words):
        found.add(part)
        yield part.texts_D, task.earlier.completed(part, encoded)


def _looked_up(items: Iterable[tuple[Item, Any]], words: WordCache) -> Iterator[tuple[Item, Encoded]]:
    """Yield each item with the ids of its texts; a thread cuts the next texts while the current ones are looked up."""
    with ThreadPoolExecutor(1) as thread:
        before: tuple[Item, Future[CutTexts]] | None = None
        for item, texts in items:
            cut = thread.submit(words.cut, texts)
            if before:
                yield before[0], words.look_up(before[1].result())
            before = item, cut
        if before:
            yield before[0], words.look_up(before[1].result())


def _append(
    column: Any, encoded: Encoded, forbidden_V: npt.NDArray[np.bool_], writer: EncodedWriter, count: PackingCount
) -> None:
    tokens_N, lengths_D = encoded.tokens_N, encoded.lengths_D
    count.tokens_in += len(tokens_N)
    is_forbidden_N = forbidden_V[tokens_N]
    if is_forbidden_N.any():
        document_N = np.repeat(np.arange(len(lengths_D)), lengths_D)
        lengths_D = lengths_D - np.bincount(document_N[is_forbidden_N], minlength=len(lengths_D))
        tokens_N = tokens_N[~is_forbidden_N]
    text_bytes_D = pc.binary_length(column).to_numpy(zero_copy_only=False)
    writer.append(tokens_N, lengths_D, text_bytes_D)
    count.num_documents += len(lengths_D)
    count.num_empty_documents += int((lengths_D == 0).sum())
    count.text_bytes += int(text_bytes_D.sum(dtype=np.int64))
    count.tokens_packed += len(tokens_N)
    count.tokens_dropped += int(is_forbidden_N.sum())
    count.uses_V += np.bincount(tokens_N, minlength=len(count.uses_V))


def _occurrences(column: Any, strings: Sequence[str]) -> int:
    content = text_bytes(column)[1]
    # Most texts hold none, and one search over all bytes is much cheaper than counting text by text.
    found = [text for text in strings if text.encode() in content]
    return sum(pc.sum(pc.count_substring(column, text)).as_py() or 0 for text in found)
