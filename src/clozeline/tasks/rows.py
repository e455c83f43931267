"""Batches of token rows for an encoder, with or without targets.

Texts are tokenized once, bucketed by length, and padded to the longest row of the batch.

Shapes: T texts; B rows of a batch, L its longest row; `targets_B` has B rows and further axes that depend on the task.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clozeline.tokenizing.tokenizer.folder import OpenTokenizer

Ids = npt.NDArray[np.int64]
# Batches in a pool of texts sorted by length: enough to need little padding, few enough to keep the order random.
_POOL_BATCHES = 32


@dataclass(frozen=True)
class EncodedBatch:
    """Texts or pairs of texts, as rows padded to one length, with their targets if they are for training.

    There is no mask if no row is padded, so that attention takes a faster path. Token types are 0 for the first text of
    a pair, 1 for the second, and None for families without them.
    """

    input_ids_BL: Tensor
    attention_mask_BL: Tensor | None
    token_type_ids_BL: Tensor | None = None
    targets_B: Any = None  # a tensor with a class, a class for each token, a pair of positions, … for each row
    # Whether the targets count: a process without rows of its own takes part with one that does not.
    counts: bool = True

    @property
    def num_rows(self) -> int:
        return self.input_ids_BL.shape[0]

    @property
    def num_slots(self) -> int:
        """Number of tokens, including padding."""
        return self.input_ids_BL.numel()

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Keyword arguments of a transformers model."""
        named = {
            "input_ids": self.input_ids_BL,
            "attention_mask": self.attention_mask_BL,
            "token_type_ids": self.token_type_ids_BL,
        }
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def rows(self, first: int, last: int) -> Self:
        """Return rows `first` … `last - 1`."""
        return self._each(lambda tensor: tensor[first:last])

    def silent(self) -> Self:
        return replace(self, counts=False)

    def to(self, device: torch.device) -> Self:
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {name: change(it) for name, it in vars(self).items() if isinstance(it, Tensor)}
        return replace(self, **changed)


@dataclass(frozen=True)
class TextRows:
    """Tokenized texts or pairs of texts, with special tokens, cut to a maximum length: `num_truncated` lost their end.

    `types_T` are the token types of pairs: 0 for tokens of the first text, 1 for those of the second.
    """

    ids_T: tuple[Ids, ...]
    pad_id: int
    num_truncated: int
    types_T: tuple[Ids, ...] | None = None

    @classmethod
    def encode(
        cls, texts: Sequence[str], opened: OpenTokenizer, max_length: int, *, seconds: Sequence[str] | None = None
    ) -> Self:
        """Tokenize texts. A special token spelled out in a text is read as text.

        Args:
            seconds: the second text of each pair. If a pair is too long, its longer text is cut first.
        """
        if seconds is not None:  # avoids `overflowing`, which for pairs holds every combination of pieces
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

    def windows(self, rows_B: Ids, length: int, seed: int, epoch: int) -> Self:
        """Return these rows, the longer ones cut to `length` tokens: a stretch between [CLS] and [SEP].

        Its place is a function of (seed, epoch, row), whatever other rows are in the batch.
        """
        cut = []
        for row in rows_B.tolist():
            ids = self.ids_T[row]
            start = int(np.random.default_rng([seed, epoch, row]).integers(1, max(len(ids) - length, 0) + 2))
            cut.append(np.concatenate([ids[:1], ids[start : start + min(length, len(ids)) - 2], ids[-1:]]))
        return replace(self, ids_T=tuple(cut), types_T=None)

    def encoded(self, rows_B: Ids, *, with_types: bool = False, targets_B: Tensor | None = None) -> EncodedBatch:
        """Return these rows, padded to the longest; `with_types` adds token types, for families that have them."""
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
            targets_B=targets_B,
        )


def _beginnings(texts: Sequence[str], opened: OpenTokenizer, max_length: int) -> list[Any]:
    """Return encodings cut to `max_length`, reading only the first `max_length` words of a long text.

    A word has at least one token, and tokenizers split at white space first, so later words do not change earlier ones.
    """
    opened.tokenizer.enable_truncation(max_length)
    begun = [_first_words(text, max_length) for text in texts]
    encodings: list[Any] = opened.tokenizer.encode_batch_fast(begun)
    # Control characters have no token, so the words read may not fill the row: then read the whole text.
    is_cut = [len(read) < len(text) for read, text in zip(begun, texts, strict=True)]
    places = [place for place, encoding in enumerate(encodings) if is_cut[place] and not encoding.overflowing]
    wholes = opened.tokenizer.encode_batch_fast([texts[place] for place in places])
    for place, whole in zip(places, wholes, strict=True):
        encodings[place] = whole
    return encodings


def lengths_of(
    texts: Sequence[str], opened: OpenTokenizer, seconds: Sequence[str] | None = None, *, has_special_ids: bool = True
) -> Ids:
    """Return `length_T`: tokens of each whole text or pair, with special tokens unless `has_special_ids` is false."""
    opened.tokenizer.no_truncation()
    encodings = opened.tokenizer.encode_batch_fast(_items(texts, seconds), add_special_tokens=has_special_ids)
    return np.array([len(encoding) for encoding in encodings], dtype=np.int64)


def _items(texts: Sequence[str], seconds: Sequence[str] | None) -> list[str] | list[tuple[str, str]]:
    return list(texts) if seconds is None else list(zip(texts, seconds, strict=True))


def padded(values: Sequence[Ids], filler: int) -> Ids:
    """Return `values_BL`: one row for each array, padded with `filler` at the end."""
    values_BL = np.full((len(values), max(map(len, values))), filler, dtype=np.int64)
    for row, given in zip(values_BL, values, strict=True):
        row[: len(given)] = given
    return values_BL


def shuffled_batches(length_T: Ids, batch_size: int, seed: int, epoch: int) -> list[Ids]:
    """Return the rows of each batch of an epoch, in a random order that depends on `seed` and `epoch` only."""
    random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    order_T = random.permutation(len(length_T))
    pool_T = np.arange(len(length_T)) // (_POOL_BATCHES * batch_size)
    order_T = order_T[np.lexsort((length_T[order_T], pool_T))]
    batches = _cut(order_T, batch_size)
    return [batches[place] for place in random.permutation(len(batches))]


def sorted_batches(length_T: Ids, batch_size: int, most_slots: int | None = None) -> list[Ids]:
    """Return batches of all rows, shortest first, for evaluation, where the order does not matter.

    Args:
        most_slots: largest number of tokens, including padding, in a batch of several rows.
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


def _cut(order_T: Ids, batch_size: int) -> list[Ids]:
    return [order_T[start : start + batch_size] for start in range(0, len(order_T), batch_size)]


def _first_words(text: str, num_words: int) -> str:
    words = text.split(maxsplit=num_words)
    return text if len(words) <= num_words else text[: -len(words[-1])].rstrip()
