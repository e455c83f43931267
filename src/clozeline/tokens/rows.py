"""Rows of documents: a row never crosses a document.

Shapes: R rows of a split; B rows of a batch, L its longest row; N content tokens or targets of a batch.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from clozeline.storage.arrays import DiskArrays, chunks
from clozeline.tokens.masking import Ids
from clozeline.tokens.shards import TokenShards

NUM_BOUNDARY_TOKENS = 2
"""[CLS] before a row and [SEP] after it."""

_DOCUMENTS_AT_A_TIME = 1 << 13
"""Number of documents processed at a time. Arrays as long as the corpus lie in files."""


@dataclass(frozen=True)
class Boundary:
    """Ids that frame a row and pad it."""

    cls_id: int
    sep_id: int
    pad_id: int


@dataclass(frozen=True)
class Rows:
    """All documents of a split, cut into rows of nearly equal length."""

    document_R: NDArray[np.int64]
    start_R: NDArray[np.int64]
    """First token of the row, counted in its document."""
    length_R: NDArray[np.int64]
    """Content tokens, without [CLS] and [SEP]."""

    @classmethod
    def cut(cls, offsets: NDArray[np.uint64], max_length: int) -> Self:
        """Cut documents into rows of at most `max_length` tokens, including the two boundary tokens.

        A document of n tokens becomes ⌈n / capacity⌉ rows whose lengths differ by at most one, so no row is a tail of
        three tokens without context. No token is dropped or repeated.
        """
        capacity = max_length - NUM_BOUNDARY_TOKENS
        num_documents = max(len(offsets) - 1, 0)
        num_rows = sum(
            int((-(-_sizes(offsets, chunk) // capacity)).sum()) for chunk in chunks(num_documents, _DOCUMENTS_AT_A_TIME)
        )
        document_R, start_R, length_R = (DiskArrays().empty(num_rows, np.int64) for _ in range(3))
        done = 0
        for chunk in chunks(num_documents, _DOCUMENTS_AT_A_TIME):
            size_D = _sizes(offsets, chunk)
            num_rows_D = -(-size_D // capacity)
            document_C = np.repeat(np.arange(len(size_D)), num_rows_D)
            first_row_D = np.cumsum(num_rows_D) - num_rows_D
            ordinal_C = np.arange(len(document_C)) - first_row_D[document_C]
            share_C, extra_C = np.divmod(size_D[document_C], num_rows_D[document_C])
            here = slice(done, done + len(document_C))
            document_R[here] = document_C + chunk.start
            start_R[here] = ordinal_C * share_C + np.minimum(ordinal_C, extra_C)
            length_R[here] = share_C + (ordinal_C < extra_C)
            done += len(document_C)
        return cls(document_R, start_R, length_R)

    def __len__(self) -> int:
        return len(self.length_R)


def _sizes(offsets: NDArray[np.uint64], documents: slice) -> NDArray[np.int64]:
    return np.diff(offsets[documents.start : documents.stop + 1]).astype(np.int64)


@dataclass(frozen=True)
class RowTokens:
    """Content tokens of a batch back to back, and the index of each in the padded batch."""

    input_ids_N: Ids
    document_N: Ids
    position_N: Ids
    """Position of each token in its document."""
    row_N: Ids
    place_N: Ids
    """Position of each token in its row, not counting [CLS]."""
    length_B: NDArray[np.int64]
    """Length of each row, including boundary tokens."""
    ends_document_B: NDArray[np.bool_]

    @property
    def longest(self) -> int:
        return int(self.length_B.max())

    @property
    def slot_N(self) -> Ids:
        """Index into the flattened [B × L] batch."""
        return self.row_N * self.longest + self.place_N + 1

    def padded(self, input_ids_N: Ids, boundary: Boundary) -> Ids:
        """Return `input_ids_BL`: [CLS] content [SEP] [PAD] …, with `input_ids_N` as the content."""
        num_rows = len(self.length_B)
        input_ids_BL = np.full((num_rows, self.longest), boundary.pad_id, dtype=np.int64)
        input_ids_BL[:, 0] = boundary.cls_id
        input_ids_BL[np.arange(num_rows), self.length_B - 1] = boundary.sep_id
        input_ids_BL.reshape(-1)[self.slot_N] = input_ids_N
        return input_ids_BL


def gather(shards: TokenShards, rows: Rows, chosen_B: NDArray[np.int64]) -> RowTokens:
    """Read the rows `chosen_B`."""
    document_B, start_B, length_B = rows.document_R[chosen_B], rows.start_R[chosen_B], rows.length_R[chosen_B]
    first_B = shards.offsets[document_B].astype(np.int64)
    input_ids_N = shards.take(first_B + start_B, length_B).astype(np.int64)
    row_N = np.repeat(np.arange(len(chosen_B)), length_B)
    place_N = np.arange(len(row_N)) - np.repeat(np.cumsum(length_B) - length_B, length_B)
    return RowTokens(
        input_ids_N=input_ids_N,
        document_N=document_B[row_N],
        position_N=start_B[row_N] + place_N,
        row_N=row_N,
        place_N=place_N,
        length_B=length_B + NUM_BOUNDARY_TOKENS,
        ends_document_B=first_B + start_B + length_B == shards.offsets[document_B + 1].astype(np.int64),
    )
