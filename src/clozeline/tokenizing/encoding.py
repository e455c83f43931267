"""Encode a partition of clean text into files of ids. Memory holds a few batches, and two numbers of each document.

Shapes: D documents of a batch, N their tokens, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from clozeline.artifacts.preprocess.clean_text import TEXT
from clozeline.cluster.ledger import Done, Record
from clozeline.tokenizer.folder import OpenTokenizer
from clozeline.tokenizing.earlier_ids import Ids, KnownIds, completed, digests_of
from clozeline.tokenizing.partitions import Partition
from clozeline.tokenizing.shards import EncodedFiles, EncodedWriter
from clozeline.tokenizing.word_cache import WordCache
from clozeline.tokenizing.word_encoding import Encoded
from clozeline.words.as_bytes.cutting import CutTexts, text_bytes

Item = TypeVar("Item")
_USES: Final = "uses.npy"
"""File of a count's `uses_V`."""
FILES_OF_COUNTS: Final = (_USES, "documents.npy")
"""Files of an encoded partition that decide counts and shards."""


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

    @property
    def numbers(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if name not in ("vocab_size", "uses_V")}

    def add(self, ids: Ids, text_bytes_D: npt.NDArray[Any]) -> None:
        """Count texts with their ids."""
        num_dropped = int(ids.dropped_D.sum(dtype=np.int64))
        self.num_documents += len(ids.lengths_D)
        self.num_empty_documents += int((ids.lengths_D == 0).sum())
        self.text_bytes += int(text_bytes_D.sum(dtype=np.int64))
        self.tokens_in += len(ids.tokens_N) + num_dropped
        self.tokens_packed += len(ids.tokens_N)
        self.tokens_dropped += num_dropped
        self.uses_V += np.bincount(ids.tokens_N, minlength=len(self.uses_V))

    def add_encoded(self, record: Record) -> None:
        """Add the counts of an encoded partition."""
        for name, value in record.facts["count"].items():
            setattr(self, name, getattr(self, name) + value)
        self.uses_V += np.load(record.folder / _USES, allow_pickle=False)


@dataclass(frozen=True)
class EncodeItem:
    """A partition whose texts are encoded."""

    name: str
    partition: Partition
    tokenizer: Path
    """Folder of the tokenizer."""
    sha256: str
    """Hash of the tokenizer."""
    dtype: str
    earlier: tuple[Path, ...]
    """Folders of partitions that hold ids of some of the texts; they change no byte."""

    @property
    def inputs(self) -> list[object]:
        return [self.partition.digest, self.sha256]

    @property
    def reads(self) -> list[Path]:
        known = [path for folder in self.earlier for path in EncodedFiles(folder, self.dtype).recorded]
        return [self.partition.path, *sorted(self.tokenizer.iterdir()), *known]


@dataclass(frozen=True)
class _Batch:
    texts_D: Any
    """Arrow array of strings."""
    digests: list[bytes]
    place_D: npt.NDArray[np.int64]
    """Place of each text among the known ones, or -1."""


def encode_partition(item: EncodeItem, folder: Path) -> Done:
    """Write the ids of a partition's texts, as `EncodedFiles`, and their counts.

    Raises:
        ArtifactError: the file of texts is damaged, or lacks a column.
    """
    opened, words = _opened(item.tokenizer, item.sha256)
    known = KnownIds.read(item.earlier, item.dtype)
    count, num_known = PackingCount(opened.vocab_size), 0
    forbidden_V = np.zeros(opened.vocab_size, dtype=bool)
    forbidden_V[[id_ for id_ in opened.special_ids.every if id_ != opened.special_ids.unk]] = True
    with EncodedWriter(EncodedFiles(folder, item.dtype)) as writer:
        for batch, encoded in _looked_up(_batches(item.partition, known), words):
            ids = completed(batch.place_D, known, _allowed(encoded, forbidden_V))
            text_bytes_D = pc.binary_length(batch.texts_D).to_numpy(zero_copy_only=False)
            writer.append(ids.tokens_N, [ids.lengths_D, text_bytes_D, ids.dropped_D], batch.digests)
            count.add(ids, text_bytes_D)
            count.special_strings_in_text += _occurrences(batch.texts_D, opened.special_strings)
            num_known += int((batch.place_D >= 0).sum())
    np.save(folder / _USES, count.uses_V, allow_pickle=False)
    return Done({"num_known": num_known, "count": count.numbers})


@lru_cache(maxsize=1)
def _opened(folder: Path, sha256: str) -> tuple[OpenTokenizer, WordCache]:
    """Return the tokenizer of this process with the words that it has encoded, which the next partition repeats."""
    opened = OpenTokenizer.open(folder)
    assert opened.sha256 == sha256, folder
    return opened, WordCache.create(opened.tokenizer)


def _batches(partition: Partition, known: KnownIds) -> Iterator[tuple[_Batch, Any]]:
    """Yield batches of texts, each with those of its texts that are not known."""
    for (texts_D,) in partition.columns(TEXT):
        digests = digests_of(texts_D)
        place_D = known.places_of(digests)
        yield _Batch(texts_D, digests, place_D), texts_D.filter(pa.array(place_D < 0))


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


def _allowed(encoded: Encoded, forbidden_V: npt.NDArray[np.bool_]) -> Ids:
    """Return the ids without the special tokens that the tokenizer found in the texts."""
    tokens_N, lengths_D = encoded.tokens_N, encoded.lengths_D
    is_forbidden_N = forbidden_V[tokens_N]
    if not is_forbidden_N.any():
        return Ids(tokens_N, lengths_D, np.zeros_like(lengths_D))
    document_N = np.repeat(np.arange(len(lengths_D)), lengths_D)
    dropped_D = np.bincount(document_N[is_forbidden_N], minlength=len(lengths_D))
    return Ids(tokens_N[~is_forbidden_N], lengths_D - dropped_D, dropped_D)


def _occurrences(column: Any, strings: Sequence[str]) -> int:
    content = text_bytes(column)[1]
    # Most texts hold none, and one search over all bytes is much cheaper than counting text by text.
    found = [text for text in strings if text.encode() in content]
    return sum(pc.sum(pc.count_substring(column, text)).as_py() or 0 for text in found)
