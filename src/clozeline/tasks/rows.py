"""From texts to batches: tokenized once, padded to the longest of a batch, texts of like length together.

Shapes: T texts; B rows of a batch, L its longest row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from clozeline.tokens.tokenizer import OpenTokenizer

Ids = npt.NDArray[np.int64]

_POOL_BATCHES = 32
"""Texts are sorted by length inside pools of so many batches: enough for hardly any padding, few enough for chance."""


@dataclass(frozen=True)
class TextRows:
    """Tokenized texts, framed by their special tokens and cut to one length."""

    ids_T: tuple[Ids, ...]
    num_truncated: int
    """Texts that were longer; their end is not read."""

    @classmethod
    def encode(cls, texts: Sequence[str], opened: OpenTokenizer, max_length: int) -> Self:
        """Tokenize; a special token that a text spells out is read as text."""
        tokenizer = opened.tokenizer
        tokenizer.no_truncation()
        num_truncated = sum(len(encoding) > max_length for encoding in tokenizer.encode_batch_fast(list(texts)))
        tokenizer.enable_truncation(max_length)
        encodings = tokenizer.encode_batch_fast(list(texts))
        return cls(tuple(np.array(encoding.ids, dtype=np.int64) for encoding in encodings), num_truncated)

    def __len__(self) -> int:
        return len(self.ids_T)

    @property
    def length_T(self) -> Ids:
        return np.array([len(ids) for ids in self.ids_T], dtype=np.int64)

    def padded(self, rows_B: Ids, pad_id: int) -> Ids:
        """`input_ids_BL` of these rows, as long as the longest."""
        chosen = [self.ids_T[row] for row in rows_B.tolist()]
        input_ids_BL = np.full((len(chosen), max(map(len, chosen))), pad_id, dtype=np.int64)
        for row, ids in zip(input_ids_BL, chosen, strict=True):
            row[: len(ids)] = ids
        return input_ids_BL


def shuffled_batches(length_T: Ids, batch_size: int, seed: int, epoch: int) -> list[Ids]:
    """Rows of each batch of an epoch: a new order for each epoch, a function of `seed` and `epoch` alone."""
    random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    order_T = random.permutation(len(length_T))
    pool_T = np.arange(len(length_T)) // (_POOL_BATCHES * batch_size)
    order_T = order_T[np.lexsort((length_T[order_T], pool_T))]
    batches = _cut(order_T, batch_size)
    return [batches[place] for place in random.permutation(len(batches))]


def sorted_batches(length_T: Ids, batch_size: int) -> list[Ids]:
    """All rows once, shortest first: for measuring, where order does not matter."""
    return _cut(np.argsort(length_T, kind="stable"), batch_size)


@dataclass(frozen=True)
class Turn:
    """One batch of the endless sequence: which epoch, which batch of it, which rows."""

    epoch: int
    batch: int
    rows_B: Ids


def batches_from(length_T: Ids, batch_size: int, seed: int, epoch: int, index: int) -> Iterator[Turn]:
    """Batches without end, from batch `index` of epoch `epoch` on."""
    while True:
        batches = shuffled_batches(length_T, batch_size, seed, epoch)
        for place in range(index, len(batches)):
            yield Turn(epoch, place, batches[place])
        epoch, index = epoch + 1, 0


def _cut(order_T: Ids, batch_size: int) -> list[Ids]:
    return [order_T[start : start + batch_size] for start in range(0, len(order_T), batch_size)]
