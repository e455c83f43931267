"""Rows as encoded elsewhere: of any length, with boundary tokens, perhaps padded, perhaps with extra columns.

Shapes: B rows, L the longest of them; N tokens of all rows, padding left out.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from clozeline.errors import DataError
from clozeline.tokens.draws import Flags, Ids
from clozeline.words.numbers.mixing import mixed


@dataclass(frozen=True)
class Slots:
    """Position of each token in a batch of equally long rows."""

    shape: tuple[int, int]
    slot_N: Ids

    def filled(self, values_N: Ids, padding: int) -> Ids:
        values_BL = np.full(self.shape, padding, dtype=np.int64)
        values_BL.reshape(-1)[self.slot_N] = values_N
        return values_BL


@dataclass(frozen=True)
class RaggedRows:
    """Concatenated rows."""

    length_B: Ids
    input_ids_N: Ids
    document_N: Ids
    """Identity of the row: the number it was given, or 64 bits of its tokens."""
    position_N: Ids
    is_maskable_N: Flags
    """False where the row's own `special_tokens_mask` is set."""
    token_type_ids_N: Ids | None

    @classmethod
    def read(cls, features: Sequence[Mapping[str, Any]]) -> Self:
        """Read `input_ids` of each row and the columns beside it.

        Raises:
            DataError: a row lacks `input_ids` or a column of the first row, or a column is not a list of as many
                integers.
        """
        kept_B = [_unpadded(feature) for feature in features]
        ids_B = [_column(feature, "input_ids")[kept] for feature, kept in zip(features, kept_B, strict=True)]
        length_B = np.array([len(ids) for ids in ids_B], dtype=np.int64)
        row_N = np.repeat(np.arange(len(length_B)), length_B)
        position_N = np.arange(len(row_N)) - (np.cumsum(length_B) - length_B)[row_N]
        input_ids_N = np.concatenate(ids_B)

        def beside(name: str) -> Ids | None:
            if name not in features[0]:
                return None
            columns = [_beside(row, name, len(kept))[kept] for row, kept in zip(features, kept_B, strict=True)]
            return np.concatenate(columns)

        special_N = beside("special_tokens_mask")
        document_B = _numbers(features, _digests(input_ids_N, row_N, position_N, len(length_B)))
        return cls(
            length_B=length_B,
            input_ids_N=input_ids_N,
            document_N=document_B[row_N],
            position_N=position_N,
            is_maskable_N=np.ones(len(row_N), dtype=bool) if special_N is None else special_N == 0,
            token_type_ids_N=beside("token_type_ids"),
        )

    def slots(self, pads_left: bool, multiple: int) -> Slots:
        longest = -(-int(self.length_B.max()) // multiple) * multiple
        row_N = np.repeat(np.arange(len(self.length_B)), self.length_B)
        first_B = longest - self.length_B if pads_left else np.zeros_like(self.length_B)
        return Slots((len(self.length_B), longest), row_N * longest + first_B[row_N] + self.position_N)


def _column(feature: Mapping[str, Any], name: str) -> Ids:
    if name not in feature:
        raise unreadable(f"keys {', '.join(feature)}", f"`{name}` in each row")
    try:
        values = np.asarray(feature[name])
    except ValueError as error:  # nested rows of different lengths
        raise unreadable(f"`{name}`: {error}", "one row of integers") from error
    if values.ndim != 1:
        raise unreadable(f"`{name}` of shape {values.shape}", "one row of integers")
    if values.dtype.kind not in "iub" and len(values):
        raise unreadable(f"`{name}` with the value {values[0]!r}", "integers")
    return values.astype(np.int64)


def _beside(feature: Mapping[str, Any], name: str, num_ids: int) -> Ids:
    values = _column(feature, name)
    if len(values) != num_ids:
        raise unreadable(f"`{name}` of length {len(values)}, `input_ids` of length {num_ids}", "equal lengths")
    return values


def _unpadded(feature: Mapping[str, Any]) -> Flags:
    num_ids = len(_column(feature, "input_ids"))
    if "attention_mask" not in feature:
        return np.ones(num_ids, dtype=bool)
    is_read: Flags = _beside(feature, "attention_mask", num_ids) != 0
    return is_read


def unreadable(given: str, expected: str) -> DataError:
    """Return the error for rows that a tokenizer would not produce."""
    return DataError(
        f"rows cannot be masked: expected {expected}, got {given}", do="encode the texts with this collator's tokenizer"
    )


def _digests(input_ids_N: Ids, row_N: Ids, position_N: Ids, num_rows: int) -> NDArray[np.uint64]:
    """Return 64 bits of each row: a sum over its tokens, each mixed with its position."""
    digest_B = np.zeros(num_rows, dtype=np.uint64)
    np.add.at(digest_B, row_N, mixed(mixed(position_N.astype(np.uint64)) + input_ids_N.astype(np.uint64)))
    return digest_B


def _numbers(features: Sequence[Mapping[str, Any]], digest_B: NDArray[np.uint64]) -> Ids:
    if "document" not in features[0]:
        return digest_B.view(np.int64)
    given: list[Any] = [feature.get("document") for feature in features]
    try:
        return np.array([operator.index(number) for number in given], dtype=np.int64)
    except (TypeError, OverflowError) as error:
        raise unreadable(f"`document` of the rows: {given[:4]}", "an integer below 2^63 for each row") from error
