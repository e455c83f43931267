"""From documents to batches: rows that never cross a document, batches that are almost free of padding.

A batch is a pure function of (seed, epoch, index): any process can build any batch, in any order.

Shapes: R rows of a split; B rows of a batch, L its longest row; N content tokens or targets of a batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from clozeline.tokens.masking import Ids
from clozeline.tokens.shards import TokenShards

NUM_BOUNDARY_TOKENS = 2
"""[CLS] before a row and [SEP] after it."""

_POOL_BATCHES = 64
"""Rows are sorted by length inside pools of so many batches: large enough that the rows of a batch differ
in length by a token or two, small enough that an epoch's order stays random."""


@dataclass(frozen=True)
class Boundary:
    """The ids that frame a row and fill what is left of it."""

    cls_id: int
    sep_id: int
    pad_id: int


@dataclass(frozen=True)
class Rows:
    """Every document of a split, cut into windows of nearly equal length."""

    document_R: NDArray[np.int64]
    start_R: NDArray[np.int64]
    """First token of the row, counted in its document."""
    length_R: NDArray[np.int64]
    """Content tokens, without [CLS] and [SEP]."""

    @classmethod
    def cut(cls, offsets: NDArray[np.uint64], max_length: int) -> Self:
        """Cut documents so that a row has at most `max_length` tokens, its two boundary tokens among them.

        A document of n tokens becomes ⌈n / capacity⌉ rows whose lengths differ by one at most: no row is a
        tail of three tokens without context. No token is dropped or repeated.
        """
        capacity = max_length - NUM_BOUNDARY_TOKENS
        size_D = (offsets[1:] - offsets[:-1]).astype(np.int64)
        num_rows_D = -(-size_D // capacity)
        document_R = np.repeat(np.arange(len(size_D)), num_rows_D)
        first_row_D = np.cumsum(num_rows_D) - num_rows_D
        ordinal_R = np.arange(len(document_R)) - first_row_D[document_R]
        share_R, extra_R = np.divmod(size_D[document_R], num_rows_D[document_R])
        start_R = ordinal_R * share_R + np.minimum(ordinal_R, extra_R)
        length_R = share_R + (ordinal_R < extra_R)
        return cls(document_R, start_R, length_R)

    def __len__(self) -> int:
        return len(self.length_R)


@dataclass(frozen=True)
class Plan:
    """Which rows go together: batch i is rows `order_R[bounds[i]:bounds[i + 1]]`."""

    order_R: NDArray[np.int64]
    bounds: NDArray[np.int64]

    @property
    def num_batches(self) -> int:
        return len(self.bounds) - 1

    def rows_of(self, batch: int) -> NDArray[np.int64]:
        return self.order_R[self.bounds[batch] : self.bounds[batch + 1]]


def shuffled_plan(length_R: NDArray[np.int64], batch_tokens: int, seed: int, epoch: int) -> Plan:
    """A new order for each epoch; rows of one batch have nearly the same length."""
    random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    order_R = random.permutation(len(length_R))
    position_R = np.cumsum(length_R[order_R] + NUM_BOUNDARY_TOKENS)
    pool_R = position_R // (_POOL_BATCHES * batch_tokens)
    by_length_R = np.lexsort((length_R[order_R], pool_R))
    order_R, pool_R = order_R[by_length_R], pool_R[by_length_R]
    bounds = _cut_batches(length_R[order_R] + NUM_BOUNDARY_TOKENS, pool_R, batch_tokens)
    return _with_shuffled_batches(Plan(order_R, bounds), random)


def sorted_plan(length_R: NDArray[np.int64], batch_tokens: int) -> Plan:
    """All rows once, shortest first: for evaluation, where order does not matter."""
    order_R = np.argsort(length_R, kind="stable")
    no_pools_R = np.zeros(len(order_R), dtype=np.int64)
    return Plan(order_R, _cut_batches(length_R[order_R] + NUM_BOUNDARY_TOKENS, no_pools_R, batch_tokens))


def _cut_batches(padded_length_R: NDArray[np.int64], pool_R: NDArray[np.int64], batch_tokens: int) -> NDArray[np.int64]:
    """Bounds of the longest runs, inside a pool, whose rows × longest row fit `batch_tokens`."""
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


def _with_shuffled_batches(plan: Plan, random: np.random.Generator) -> Plan:
    batches = random.permutation(plan.num_batches)
    sizes = np.diff(plan.bounds)[batches]
    order_R = [plan.rows_of(batch) for batch in batches]
    return Plan(np.concatenate(order_R) if order_R else plan.order_R, np.append(0, np.cumsum(sizes)))


@dataclass(frozen=True)
class RowTokens:
    """The content tokens of a batch back to back, and where each one goes in the padded batch."""

    input_ids_N: Ids
    document_N: Ids
    position_N: Ids
    """Counted in the document."""
    row_N: Ids
    place_N: Ids
    """Counted in the row, [CLS] not among them."""
    length_B: NDArray[np.int64]
    """Tokens of each row, boundary tokens among them."""
    ends_document_B: NDArray[np.bool_]

    @property
    def longest(self) -> int:
        return int(self.length_B.max())

    @property
    def slot_N(self) -> Ids:
        """Index into the flattened [B × L] batch."""
        return self.row_N * self.longest + self.place_N + 1

    def padded(self, input_ids_N: Ids, boundary: Boundary) -> Ids:
        """`input_ids_BL`: [CLS] content [SEP] [PAD] …; `input_ids_N` stand in for the tokens' own ids."""
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
    """Batches without end, from batch `batch` of epoch `epoch` on; the time to the first does not grow with either."""
    while True:
        plan = shuffled_plan(length_R, batch_tokens, seed, epoch)
        for index in range(batch, plan.num_batches):
            yield Turn(epoch, index, plan.rows_of(index))
        epoch, batch = epoch + 1, 0


@dataclass(frozen=True)
class Turn:
    """One batch of the endless sequence: which epoch, which batch of it, which rows."""

    epoch: int
    batch: int
    rows_B: NDArray[np.int64]
