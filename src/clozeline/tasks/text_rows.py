"""From texts to batches: tokenized once, padded to the longest of a batch, texts of like length together.

Shapes: T texts; B rows of a batch, L its longest row.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from clozeline.tasks.encoded import EncodedBatch
from clozeline.tokenizer.folder import OpenTokenizer
from clozeline.training.state import Batch

Ids = npt.NDArray[np.int64]
Inputs = TypeVar("Inputs")

_POOL_BATCHES = 32
"""Texts are sorted by length inside pools of so many batches: enough for hardly any padding, few enough for chance."""


@dataclass(frozen=True)
class TextRows:
    """Tokenized texts, or pairs of them, framed by their special tokens and cut to one length."""

    ids_T: tuple[Ids, ...]
    pad_id: int
    num_truncated: int
    """Texts that were longer; their end is not read."""
    types_T: tuple[Ids, ...] | None = None
    """Of pairs: 0 for a token of the first text, 1 for one of the second."""

    @classmethod
    def encode(
        cls, texts: Sequence[str], opened: OpenTokenizer, max_length: int, *, seconds: Sequence[str] | None = None
    ) -> Self:
        """Tokenize; a special token that a text spells out is read as text.

        Args:
            seconds: the second text of each pair; of a pair that is too long, the longer text is cut first.
        """
        if seconds is not None:  # what is cut off a pair is given in every combination: it is not asked for
            num_truncated = int((lengths_of(texts, opened, seconds) > max_length).sum())
            opened.tokenizer.enable_truncation(max_length)
            encodings = opened.tokenizer.encode_batch_fast(_items(texts, seconds))
        else:
            encodings = _beginnings(texts, opened, max_length)
            num_truncated = sum(bool(encoding.overflowing) for encoding in encodings)
        ids_T = tuple(np.array(encoding.ids, dtype=np.int64) for encoding in encodings)
        types_T = None if seconds is None else tuple(np.array(e.type_ids, dtype=np.int64) for e in encodings)
        return cls(ids_T, opened.special_ids.pad, num_truncated, types_T)

    def __len__(self) -> int:
        return len(self.ids_T)

    @property
    def length_T(self) -> Ids:
        return np.array([len(ids) for ids in self.ids_T], dtype=np.int64)

    def encoded(self, rows_B: Ids, *, with_types: bool = False) -> EncodedBatch:
        """These rows, as long as the longest; `with_types` for a family that tells the texts of a pair apart."""
        ids_B = [self.ids_T[row] for row in rows_B.tolist()]
        input_ids_BL = padded(ids_B, self.pad_id)
        is_token_BL = np.arange(input_ids_BL.shape[1]) < np.array([len(ids) for ids in ids_B])[:, None]
        types_BL = None
        if with_types and self.types_T is not None:
            types_BL = torch.from_numpy(padded([self.types_T[row] for row in rows_B.tolist()], 0))
        return EncodedBatch(
            input_ids_BL=torch.from_numpy(input_ids_BL),
            attention_mask_BL=None if is_token_BL.all() else torch.from_numpy(is_token_BL.astype(np.int64)),
            token_type_ids_BL=types_BL,
        )


def _beginnings(texts: Sequence[str], opened: OpenTokenizer, max_length: int) -> list[Any]:
    """Encodings cut to one length. Of a long text only so many words are read as there is room for tokens: each is one
    at least, and tokenizers cut at white space before all else, so that what is behind a word does not change it.
    """
    opened.tokenizer.enable_truncation(max_length)
    begun = [_first_words(text, max_length) for text in texts]
    encodings: list[Any] = opened.tokenizer.encode_batch_fast(begun)
    # Of control characters alone there is no token: such a text was begun, and not filled.
    is_cut = [len(read) < len(text) for read, text in zip(begun, texts, strict=True)]
    places = [place for place, encoding in enumerate(encodings) if is_cut[place] and not encoding.overflowing]
    wholes = opened.tokenizer.encode_batch_fast([texts[place] for place in places])
    for place, whole in zip(places, wholes, strict=True):
        encodings[place] = whole
    return encodings


def lengths_of(texts: Sequence[str], opened: OpenTokenizer, seconds: Sequence[str] | None = None) -> Ids:
    """`length_T`: tokens of each whole text or pair, special ones among them."""
    opened.tokenizer.no_truncation()
    encodings = opened.tokenizer.encode_batch_fast(_items(texts, seconds))
    return np.array([len(encoding) for encoding in encodings], dtype=np.int64)


def _items(texts: Sequence[str], seconds: Sequence[str] | None) -> list[str] | list[tuple[str, str]]:
    return list(texts) if seconds is None else list(zip(texts, seconds, strict=True))


def padded(values: Sequence[Ids], filler: int) -> Ids:
    """`values_BL`: a row for each, as long as the longest, filled up at its end."""
    values_BL = np.full((len(values), max(map(len, values))), filler, dtype=np.int64)
    for row, given in zip(values_BL, values, strict=True):
        row[: len(given)] = given
    return values_BL


def shuffled_batches(length_T: Ids, batch_size: int, seed: int, epoch: int) -> list[Ids]:
    """Rows of each batch of an epoch: a new order for each epoch, a function of `seed` and `epoch` alone."""
    random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    order_T = random.permutation(len(length_T))
    pool_T = np.arange(len(length_T)) // (_POOL_BATCHES * batch_size)
    order_T = order_T[np.lexsort((length_T[order_T], pool_T))]
    batches = _cut(order_T, batch_size)
    return [batches[place] for place in random.permutation(len(batches))]


def sorted_batches(length_T: Ids, batch_size: int, most_slots: int | None = None) -> list[Ids]:
    """All rows once, shortest first: for measuring, where order does not matter.

    Args:
        most_slots: a batch of several rows has at most so many tokens, padding among them.
    """
    order_T = np.argsort(length_T, kind="stable")
    if most_slots is None:
        return _cut(order_T, batch_size)
    batches: list[Ids] = []
    start = 0
    while start < len(order_T):
        some_T = order_T[start : start + batch_size]
        fits_T = np.arange(1, len(some_T) + 1) * length_T[some_T] <= most_slots
        batches.append(some_T[: max(int(fits_T.sum()), 1)])
        start += len(batches[-1])
    return batches


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


def training_batches(
    length_T: Ids, batch_size: int, seed: int, epoch: int, index: int, make: Callable[[Ids], Inputs]
) -> Iterator[Batch[Inputs]]:
    """What a task's `batches_from` gives, with one target for each row: `make` turns rows into inputs."""
    for turn in batches_from(length_T, batch_size, seed, epoch, index):
        yield Batch(turn.epoch, turn.batch, make(turn.rows_B), int(length_T[turn.rows_B].sum()), len(turn.rows_B))


def _cut(order_T: Ids, batch_size: int) -> list[Ids]:
    return [order_T[start : start + batch_size] for start in range(0, len(order_T), batch_size)]


def _first_words(text: str, num_words: int) -> str:
    words = text.split(maxsplit=num_words)
    return text if len(words) <= num_words else text[: -len(words[-1])].rstrip()
