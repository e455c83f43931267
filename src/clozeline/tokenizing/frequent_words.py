"""The most frequent words of a text, in memory that does not grow with it.

A vocabulary is learned from words and their counts. The trainers of `tokenizers` keep every word, although most occur
once or twice and decide nothing. Only the most frequent words are kept here and shown to a trainer, each as often as it
occurs.

Shapes: U distinct words, W words of some texts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from clozeline.tokenizing.word_cache import Cut

MOST_WORDS = 2**15
_MOST_COUNTED = 2**17
"""Limit while counting: above twice this number, the words that are rare so far are forgotten."""
_CHARACTERS_A_TEXT = 2000
_TEXTS_A_BATCH = 100


@dataclass(frozen=True)
class FrequentWords:
    """Words, most frequent first; equally frequent ones in the order of their letters."""

    words: Sequence[str]
    count_U: npt.NDArray[np.int64]

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


def count_words(batches: Iterable[Sequence[str]], cut: Cut, most_words: int = MOST_WORDS) -> FrequentWords:
    """Return the `most_words` most frequent words of all texts, as `cut` cuts them."""
    counted = _table([], np.zeros(0, np.int64))
    for batch in batches:
        found = cut(pa.array(batch, pa.string()))
        count_U = np.bincount(found.index_W, minlength=len(found.distinct_U))
        counted = pa.concat_tables([counted, _table(found.distinct_U, count_U)])
        if len(counted) > 2 * _MOST_COUNTED:
            counted = _most_frequent(counted, _MOST_COUNTED)
    kept = _most_frequent(counted, most_words)
    return FrequentWords(kept["word"].to_pylist(), kept["count"].to_numpy())


def _table(words_U: Any, count_U: npt.NDArray[np.int64]) -> pa.Table:
    return pa.table({"word": pa.array(words_U, pa.string()), "count": pa.array(count_U, pa.int64())})


def _most_frequent(counted: pa.Table, number: int) -> pa.Table:
    summed = counted.group_by("word", use_threads=False).aggregate([("count", "sum")])
    ordered = summed.sort_by([("count_sum", "descending"), ("word", "ascending")])
    return ordered.rename_columns(["word", "count"]).slice(0, number)
