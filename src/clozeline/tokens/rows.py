"""Rows and batches of documents: rows never cross a document, and batches are almost free of padding.

A batch is a pure function of (seed, epoch, index): any process can build any batch, in any order.

Shapes: R rows of a split; B rows of a batch, L its longest row; N content tokens or targets of a batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from clozeline.errors import DataError
from clozeline.storage.arrays import DiskArrays, chunks
from clozeline.tokens.masking import Ids
from clozeline.tokens.shards import TokenShards

NUM_BOUNDARY_TOKENS = 2
"""[CLS] before a row and [SEP] after it."""

_POOL_BATCHES = 64
"""Batches in a pool, inside which rows are sorted by length.

Large enough that the rows of a batch differ in length by a token or two, small enough that the order of an epoch stays
random.
"""


_DOCUMENTS_AT_A_TIME = 1 << 13
_ROWS_AT_A_TIME = 1 << 15
"""Numbers of documents and of rows processed at a time. Arrays as long as the corpus lie in files."""


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
class Plan:
    """Assignment of rows to batches: batch i is rows `order_R[bounds[j]:bounds[j + 1]]`, where j is `batches[i]`."""

    order_R: NDArray[np.int64]
    bounds: NDArray[np.int64]
    batches: NDArray[np.int64]

    @property
    def num_batches(self) -> int:
        return len(self.bounds) - 1

    def rows_of(self, batch: int) -> NDArray[np.int64]:
        place = int(self.batches[batch])
        return self.order_R[self.bounds[place] : self.bounds[place + 1]]


def shuffled_plan(length_R: NDArray[np.int64], batch_tokens: int, seed: int, epoch: int) -> Plan:
    """Return a new order for each epoch; the rows of a batch have nearly the same length.

    Raises:
        DataError: the split has no rows.
    """
    if not len(length_R):
        raise DataError(
            "the training split holds no tokens",
            given="0 rows",
            expected="documents with tokens",
            do="add text, or make the validation split smaller, then run `dvc repro`",
        )
    random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    order_R = _permutation(len(length_R), random)
    bounds = DiskArrays().joined(_sorted_in_pools(order_R, length_R, batch_tokens), np.int64)
    return Plan(order_R, bounds, _permutation(len(bounds) - 1, random))


def sorted_plan(length_R: NDArray[np.int64], batch_tokens: int) -> Plan:
    """Return a plan of all rows, shortest first: for evaluation, where the order does not matter."""
    order_R = np.argsort(length_R, kind="stable")
    no_pools_R = np.zeros(len(order_R), dtype=np.int64)
    bounds = _cut_batches(length_R[order_R] + NUM_BOUNDARY_TOKENS, no_pools_R, batch_tokens)
    return Plan(order_R, bounds, np.arange(len(bounds) - 1))


def _permutation(length: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Return the result of `random.permutation(length)`, on disk."""
    numbers: NDArray[np.int64] = DiskArrays().empty(length, np.int64)
    for chunk in chunks(length):
        numbers[chunk] = np.arange(chunk.start, chunk.stop)
    random.shuffle(numbers)
    return numbers


def _sorted_in_pools(
    order_R: NDArray[np.int64], length_R: NDArray[np.int64], batch_tokens: int
) -> Iterator[NDArray[np.int64]]:
    """Sort `order_R` in place by length inside each pool, some pools at a time; yield the bounds of the batches."""
    yield np.zeros(1, np.int64)
    start, position, size = 0, 0, _ROWS_AT_A_TIME
    while start < len(order_R):
        some_C = order_R[start : start + size]
        length_C = length_R[some_C] + NUM_BOUNDARY_TOKENS
        position_C = position + np.cumsum(length_C)
        pool_C = position_C // (_POOL_BATCHES * batch_tokens)
        is_end = start + size >= len(order_R)
        num_whole = len(pool_C) if is_end else int(np.searchsorted(pool_C, pool_C[-1]))
        if not num_whole:
            size *= 2
            continue
        by_length = np.lexsort((length_C[:num_whole], pool_C[:num_whole]))
        some_C[:num_whole] = some_C[by_length]
        yield start + _cut_batches(length_C[by_length], pool_C[by_length], batch_tokens)[1:]
        start, position = start + num_whole, int(position_C[num_whole - 1])


def _cut_batches(padded_length_R: NDArray[np.int64], pool_R: NDArray[np.int64], batch_tokens: int) -> NDArray[np.int64]:
    """Return the bounds of the longest runs within a pool whose rows × longest row fit `batch_tokens`."""
    pool_ends = np.append(np.flatnonzero(np.diff(pool_R)) + 1, len(pool_R))
    bounds = [0]
    for pool_end in pool_ends.tolist():
        while bounds[-1] < pool_end:
            start = bounds[-1]
            most = max(batch_tokens // int(padded_length_R[start]), 1)
            lengths = padded_length_R[start : min(start + most, pool_end)]
            fits = np.arange(1, len(lengths) + 1) * lengths <= batch_tokens
            bounds.append(start + max(int(fits.sum()), 1))
    return np.array(bounds)


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


def cursor(length_R: NDArray[np.int64], batch_tokens: int, seed: int, epoch: int, batch: int) -> Iterator["Turn"]:
    """Yield batches without end, from batch `batch` of epoch `epoch` on; a later start takes no longer."""
    while True:
        plan = shuffled_plan(length_R, batch_tokens, seed, epoch)
        for index in range(batch, plan.num_batches):
            yield Turn(epoch, index, plan.rows_of(index))
        epoch, batch = epoch + 1, 0


@dataclass(frozen=True)
class Turn:
    """Identity of one batch of the endless sequence: its epoch, its index in the epoch, and its rows."""

    epoch: int
    batch: int
    rows_B: NDArray[np.int64]
