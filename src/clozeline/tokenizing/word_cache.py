"""Encode each distinct word once: the ids of whole texts, many times faster.

Text repeats its words, but `tokenizers` normalizes and splits every occurrence again. If a tokenizer always cuts at
spaces, whatever their context, the ids of a text are the ids of its words back to back, and words can be looked up.

Shapes: D texts, N their tokens, W words of all texts, U distinct words, K words of the cache by their hashes.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from clozeline.inference import word_cuts
from clozeline.inference.word_cuts import (
    BEFORE_BLANKS,
    MARK,
    ONLY_PYTHON_SAYS_SPACE,
    PUNCTUATION,
    PUNCTUATION_BLANKS,
    WORD_BLANKS,
)
from clozeline.tokenizing.word_encoding import Encoded, encode_each, encode_joined
from clozeline.words.as_bytes.cutting import ByteClasses, CutTexts
from clozeline.words.as_bytes.hashing import word_hashes

Cut = Callable[[Any], CutTexts]
"""Function that cuts an Arrow array of texts."""
Encode = Callable[[Tokenizer, Sequence[str]], Encoded]

_MOST_WORDS = 2**17
_MOST_WORD_BYTES = 2**22
"""Largest number and size of the words kept between batches; above either, the cache is emptied."""


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

    def encode(self, texts_D: Any) -> Encoded:
        """Return the ids of each text of an Arrow array of strings, without special tokens around it."""
        return self.look_up(self.cut(texts_D))

    def look_up(self, cut: CutTexts) -> Encoded:
        """Return the ids of texts that `cut` has cut."""
        if len(self) > _MOST_WORDS or self._words.nbytes > _MOST_WORD_BYTES:
            self._forget()
        ordinal_W = self._ordinals(cut.distinct_U)[cut.index_W]
        # The cache holds a list for each word: Arrow copies list after list, while NumPy would need the position of
        # each id.
        ids_W = self._ids.take(pa.array(ordinal_W))
        ends_W = ids_W.offsets.to_numpy()
        first_word_D = np.append(0, np.cumsum(cut.num_words_D))
        return Encoded(tokens_N=ids_W.values.to_numpy(), lengths_D=np.diff(ends_W[first_word_D]))

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


_AT_BLANKS = ByteClasses.of(blanks=WORD_BLANKS)
_AT_PUNCTUATION = ByteClasses.of(blanks=PUNCTUATION_BLANKS, alone=PUNCTUATION)


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
