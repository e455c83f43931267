"""Encode a partition of clean text into files of ids. Memory holds a few batches, and two numbers of each document.

Each distinct word is encoded once, many words at a time. Text repeats its words, but `tokenizers` normalizes and splits
every occurrence again. If a tokenizer always cuts at spaces, whatever their context, the ids of a text are the ids of
its words back to back, and words can be looked up.

Shapes: D documents or texts of a batch, N their tokens, W words of all texts, U distinct words, K words of the cache by
their hashes, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from clozeline.cluster.ledger import Done, FinishedTask, Item
from clozeline.records import clean_text, word_cuts
from clozeline.records.reading.tokens import dtype_for
from clozeline.records.word_cuts import (
    BEFORE_BLANKS,
    MARK,
    ONLY_PYTHON_SAYS_SPACE,
    PUNCTUATION,
    PUNCTUATION_BLANKS,
    WORD_BLANKS,
)
from clozeline.records.words.bytes import ByteClasses, CutTexts, text_bytes, word_hashes
from clozeline.tokenizing.earlier_ids import Ids, KnownIds, completed, digests_of
from clozeline.tokenizing.shards import EncodedFiles, Partition, writing
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer

# Words encoded at a time: the encoding of a word takes a hundred times the memory of its ids.
_WORDS_AT_A_TIME = 1024
_JOINED_WORDS = 64

# Function that cuts an Arrow array of texts.
Cut = Callable[[Any], CutTexts]

_MOST_WORDS = 2**17
# Largest number and size of the words kept between batches; above either, the cache is emptied.
_MOST_WORD_BYTES = 2**22

_AT_BLANKS = ByteClasses.of(blanks=WORD_BLANKS)
_AT_PUNCTUATION = ByteClasses.of(blanks=PUNCTUATION_BLANKS, alone=PUNCTUATION)

Given = TypeVar("Given")
# File of a count's `uses_V`.
_USES = "uses.npy"
# Files of an encoded partition that decide counts and shards.
FILES_OF_COUNTS = (_USES, "documents.npy")


@dataclass(frozen=True)
class EncodedWords:
    """Ids of some words or texts, back to back, and the number of ids of each."""

    tokens_N: npt.NDArray[np.uint32]
    lengths_D: npt.NDArray[np.int64]


def encode_each(tokenizer: Tokenizer, words: Sequence[str]) -> EncodedWords:
    """Encode each word as a text of its own."""
    ids = [
        encoding.ids
        for some in _parts(words, _WORDS_AT_A_TIME)
        for encoding in tokenizer.encode_batch_fast(some, add_special_tokens=False)
    ]
    return EncodedWords(_flat(ids), np.array([len(word_ids) for word_ids in ids], dtype=np.int64))


def encode_joined(tokenizer: Tokenizer, words: Sequence[str]) -> EncodedWords:
    """Encode like `encode_each` in half the time: for words without blanks and tokenizers that drop blanks."""
    ids, lengths = [], [np.zeros(0, np.int64)]
    for some in _parts(words, _WORDS_AT_A_TIME):
        groups = list(_parts(some, _JOINED_WORDS))
        encodings = tokenizer.encode_batch([" ".join(group) for group in groups], add_special_tokens=False)
        for group, encoding in zip(groups, encodings, strict=True):
            ids.append(encoding.ids)
            lengths.append(_lengths(group, encoding.offsets))
    return EncodedWords(_flat(ids), np.concatenate(lengths))


def _lengths(words: Sequence[str], offsets: list[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """Return the number of tokens that begin in each word of the text that joins the words with blanks."""
    ends_W = np.cumsum([len(word) + 1 for word in words])
    starts_N = np.fromiter(chain.from_iterable(offsets), np.int64, 2 * len(offsets))[::2]
    return np.bincount(np.searchsorted(ends_W, starts_N, side="right"), minlength=len(words))


def _parts(words: Sequence[str], size: int) -> Iterator[Any]:
    return (words[start : start + size] for start in range(0, len(words), size))


def _flat(ids: list[list[int]]) -> npt.NDArray[np.uint32]:
    return np.fromiter(chain.from_iterable(ids), np.uint32, sum(map(len, ids)))


Encode = Callable[[Tokenizer, Sequence[str]], EncodedWords]


class WordCache:
    """Words seen so far, with the ids of each."""

    def __init__(self, tokenizer: Tokenizer, cut: Cut, encode: Encode) -> None:
        self._tokenizer = tokenizer
        self.cut = cut
        self._encode = encode
        self._forget()

    @classmethod
    def create(cls, tokenizer: Tokenizer) -> Self:
        """Return a cache for `tokenizer`; if its words depend on each other, a whole text counts as one word."""
        return cls(tokenizer, *_WAYS[word_cuts.cut_of(tokenizer)])

    def __len__(self) -> int:
        return len(self._words)

    def encode(self, texts_D: Any) -> EncodedWords:
        """Return the ids of each text of an Arrow array of strings, without special tokens around it."""
        return self.look_up(self.cut(texts_D))

    def look_up(self, cut: CutTexts) -> EncodedWords:
        """Return the ids of texts that `cut` has cut."""
        if len(self) > _MOST_WORDS or self._words.nbytes > _MOST_WORD_BYTES:
            self._forget()
        ordinal_W = self._ordinals(cut.distinct_U)[cut.index_W]
        # The cache holds a list for each word: Arrow copies list after list, while NumPy would need the position of
        # each id.
        ids_W = self._ids.take(pa.array(ordinal_W))
        ends_W = ids_W.offsets.to_numpy()
        first_word_D = np.append(0, np.cumsum(cut.num_words_D))
        return EncodedWords(tokens_N=ids_W.values.to_numpy(), lengths_D=np.diff(ends_W[first_word_D]))

    def _forget(self) -> None:
        self._words = pa.array([], pa.string())
        self._ids = pa.array([], pa.large_list(pa.uint32()))
        self._hash_K = np.zeros(0, np.uint64)
        self._ordinal_K = np.zeros(0, np.int64)

    def _ordinals(self, distinct_U: Any) -> npt.NDArray[np.int64]:
        """Return the indices of words in the cache; add those that are missing.

        Arrow's own index_in rehashes every word of the cache for each batch.
        """
        hash_U = word_hashes(distinct_U)
        at_U = np.searchsorted(self._hash_K, hash_U)
        ordinal_U = np.append(self._ordinal_K, -1)[at_U]
        nearest = self._words.take(pa.array(ordinal_U, mask=ordinal_U < 0))
        is_new_U = pc.not_equal(nearest, distinct_U).fill_null(True).to_numpy(zero_copy_only=False)
        ordinal_U[is_new_U] = np.arange(len(self), len(self) + int(is_new_U.sum()))
        self._learn(distinct_U.filter(pa.array(is_new_U)), hash_U[is_new_U])
        return ordinal_U

    def _learn(self, words: Any, hashes: npt.NDArray[np.uint64]) -> None:
        encoded = self._encode(self._tokenizer, words.to_pylist())
        ends_U = np.append(0, np.cumsum(encoded.lengths_D))
        self._remember(hashes)
        self._words = pa.concat_arrays([self._words, words])
        ids_U = pa.LargeListArray.from_arrays(pa.array(ends_U), pa.array(encoded.tokens_N))
        self._ids = pa.concat_arrays([self._ids, ids_U])

    def _remember(self, hashes: npt.NDArray[np.uint64]) -> None:
        """Record the indices of the words that are added next.

        Only the first of several words with equal hashes is recorded; the others are encoded again each time.
        """
        unique_K, first_K = np.unique(hashes, return_index=True)
        at_K = np.searchsorted(self._hash_K, unique_K)
        is_new_K = (at_K == len(self._hash_K)) | (np.append(self._hash_K, np.uint64(0))[at_K] != unique_K)
        self._hash_K = np.insert(self._hash_K, at_K[is_new_K], unique_K[is_new_K])
        self._ordinal_K = np.insert(self._ordinal_K, at_K[is_new_K], len(self) + first_K[is_new_K])


def _cut_at_blanks_unless_marked(texts_D: Any) -> CutTexts:
    return _AT_BLANKS.cut(texts_D, pc.match_substring(texts_D, MARK).to_numpy(zero_copy_only=False))


def _cut_before_blanks(texts_D: Any) -> CutTexts:
    return _spelled(
        [[text] if ONLY_PYTHON_SAYS_SPACE.search(text) else BEFORE_BLANKS.findall(text) for text in texts_D.to_pylist()]
    )


def _whole(texts_D: Any) -> CutTexts:
    return _spelled([[text] for text in texts_D.to_pylist()])


def _spelled(words_D: list[list[str]]) -> CutTexts:
    words_W = pa.array(chain.from_iterable(words_D), pa.string()).dictionary_encode()
    num_words_D = np.array([len(words) for words in words_D], dtype=np.int64)
    return CutTexts(words_W.dictionary, words_W.indices.to_numpy(), num_words_D)


_WAYS: Mapping[word_cuts.Cut | None, tuple[Cut, Encode]] = {
    "at punctuation": (_AT_PUNCTUATION.cut, encode_joined),
    "at blanks": (_AT_BLANKS.cut, encode_joined),
    "at blanks unless marked": (_cut_at_blanks_unless_marked, encode_each),
    "before blanks": (_cut_before_blanks, encode_each),
    None: (_whole, encode_each),
}


@dataclass
class PackingCount:
    """Counts of texts: tokens in = tokens packed + tokens dropped."""

    vocab_size: int
    num_documents: int = 0
    num_empty_documents: int = 0
    text_bytes: int = 0
    tokens_in: int = 0
    tokens_packed: int = 0
    tokens_dropped: int = 0  # special tokens that the tokenizer found in raw text
    # Occurrences of `[MASK]` or another special token written out in a text; they are packed as ordinary text.
    special_strings_in_text: int = 0
    uses_V: npt.NDArray[np.int64] = field(init=False)  # number of times each id was packed

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

    def add_encoded(self, record: FinishedTask) -> None:
        """Add the counts of an encoded partition."""
        for name, value in record.facts["count"].items():
            setattr(self, name, getattr(self, name) + value)
        self.uses_V += np.load(record.folder / _USES, allow_pickle=False)


@dataclass(frozen=True)
class _Batch:
    texts_D: Any  # Arrow array of strings
    digests: list[bytes]
    place_D: npt.NDArray[np.int64]  # place of each text among the known ones, or -1


def encode_item(name: str, partition: Partition, opened: OpenTokenizer, earlier: Sequence[Path]) -> Item:
    """Return the task that encodes a partition.

    Args:
        earlier: folders of partitions that hold ids of some of the texts; they change no byte.
    """
    dtype, tokenizer = dtype_for(opened.vocab_size), opened.folder
    known = [path for folder in earlier for path in EncodedFiles(folder, dtype).recorded]
    reads = [partition.path, *sorted(tokenizer.iterdir()), *known]
    run = partial(encode_partition, partition, tokenizer, opened.sha256, earlier)
    return Item(name, [partition.digest, opened.sha256], reads, run)


def encode_partition(partition: Partition, tokenizer: Path, sha256: str, earlier: Sequence[Path], folder: Path) -> Done:
    """Write the ids of a partition's texts, as `EncodedFiles`, and their counts.

    Raises:
        ArtifactError: the file of texts is damaged, or lacks a column.
    """
    opened, words = _opened(tokenizer, sha256)
    dtype = dtype_for(opened.vocab_size)
    known = KnownIds.read(earlier, dtype)
    count, num_known = PackingCount(opened.vocab_size), 0
    forbidden_V = np.zeros(opened.vocab_size, dtype=bool)
    forbidden_V[[id_ for id_ in opened.special_ids.every if id_ != opened.special_ids.unk]] = True
    with writing(EncodedFiles(folder, dtype)) as append:
        for batch, encoded in _looked_up(_batches(partition, known), words):
            ids = completed(batch.place_D, known, _allowed(encoded, forbidden_V))
            text_bytes_D = pc.binary_length(batch.texts_D).to_numpy(zero_copy_only=False)
            append(ids.tokens_N, [ids.lengths_D, text_bytes_D, ids.dropped_D], batch.digests)
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
    for (texts_D,) in partition.columns(clean_text.TEXT):
        digests = digests_of(texts_D)
        place_D = known.places_of(digests)
        yield _Batch(texts_D, digests, place_D), texts_D.filter(pa.array(place_D < 0))


def _looked_up(items: Iterable[tuple[Given, Any]], words: WordCache) -> Iterator[tuple[Given, EncodedWords]]:
    """Yield each item with the ids of its texts; a thread cuts the next texts while the current ones are looked up."""
    with ThreadPoolExecutor(1) as thread:
        before: tuple[Given, Future[CutTexts]] | None = None
        for item, texts in items:
            cut = thread.submit(words.cut, texts)
            if before:
                yield before[0], words.look_up(before[1].result())
            before = item, cut
        if before:
            yield before[0], words.look_up(before[1].result())


def _allowed(encoded: EncodedWords, forbidden_V: npt.NDArray[np.bool_]) -> Ids:
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
