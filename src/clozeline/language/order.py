"""Order of the rows: batches are almost free of padding, and text larger than memory is read window by window.

A batch is a pure function of (seed, epoch, index): any process can build any batch, in any order.

Shapes: R rows of a split; B rows of a batch; W rows of a window.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from clozeline.language.shards import NUM_BOUNDARY_TOKENS
from clozeline.system.arrays import DiskArrays, chunks
from clozeline.system.errors import DataError

# Tokens of a window: 2 GB, so that two windows stay in memory. Inside a window, the order is random.
WINDOW_TOKENS = 1_000_000_000
# Batches in a pool, inside which rows are sorted by length.
#
# Large enough that the rows of a batch differ in length by a token or two, small enough that the order of an epoch
# stays random.
_POOL_BATCHES = 64

# Number of rows processed at a time. Arrays as long as the corpus lie in files.
_ROWS_AT_A_TIME = 1 << 15
# Number of the random stream that orders blocks. The stream of a window is the number of the window.
_WHICH_BLOCKS = 1 << 63


@dataclass(frozen=True)
class Block:
    """Rows that lie together on disk: those of a token shard."""

    rows: slice
    num_tokens: int


@dataclass(frozen=True)
class OrderPlan:
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


@dataclass(frozen=True)
class Epoch:
    """The batches of an epoch, window after window."""

    windows: Sequence[OrderPlan]
    blocks: Sequence[Sequence[int]]  # numbers of the blocks of each window

    @cached_property
    def num_batches(self) -> int:
        return self._ends[-1]

    def rows_of(self, batch: int) -> NDArray[np.int64]:
        place = bisect_right(self._ends, batch)
        window = self.windows[place]
        return window.rows_of(batch - self._ends[place] + window.num_batches)

    def blocks_ahead(self, batch: int, *, is_first: bool) -> Sequence[int]:
        """Return the blocks to read ahead at this batch: at the start of a window those of the next one.

        Args:
            is_first: whether the reader begins here; it needs the blocks of this window, too.
        """
        place = bisect_right(self._ends, batch)
        if len(self.windows) == 1 or not (is_first or batch in self._ends[:place]):
            return ()
        return [block for blocks in self.blocks[place if is_first else place + 1 : place + 2] for block in blocks]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(window.num_batches for window in self.windows))


def shuffled_plan(
    length_R: NDArray[np.int64], batch_tokens: int, seed: int, epoch: int, blocks: Sequence[Block] = ()
) -> Epoch:
    """Return a new order for each epoch; the rows of a batch have nearly the same length.

    Text of more than `WINDOW_TOKENS` is shuffled twice: its `blocks`, then the rows and batches of each window of them.

    Raises:
        DataError: the split has no rows.
    """
    if not len(length_R):
        raise DataError("the training split holds no tokens", do="add text, or make the validation split smaller")
    windows = _windows(blocks, seed, epoch)
    rows = [[blocks[number].rows for number in window] for window in windows] or [[slice(0, len(length_R))]]
    plans = [
        _window_plan(_numbers(of_window), length_R, batch_tokens, _random(seed, epoch, window))
        for window, of_window in enumerate(rows)
    ]
    return Epoch(plans, windows)


def _windows(blocks: Sequence[Block], seed: int, epoch: int) -> list[list[int]]:
    """Return the numbers of the blocks of each window; nothing if there is only one window."""
    num_tokens = np.array([block.num_tokens for block in blocks], dtype=np.int64)
    if num_tokens.sum() <= WINDOW_TOKENS:
        return []
    order = _random(seed, epoch, _WHICH_BLOCKS).permutation(
        [n for n, block in enumerate(blocks) if block.rows.stop > block.rows.start]
    )
    window_of = (np.cumsum(num_tokens[order]) - num_tokens[order]) // WINDOW_TOKENS
    return [order[window_of == window].tolist() for window in np.unique(window_of)]


def _random(seed: int, epoch: int, stream: int) -> np.random.Generator:
    counter = np.array([0, 0, 0, stream], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=[seed, epoch], counter=counter))


def _window_plan(
    order_W: NDArray[np.int64], length_R: NDArray[np.int64], batch_tokens: int, random: np.random.Generator
) -> OrderPlan:
    """Shuffle the rows of a window in place, and then its batches."""
    random.shuffle(order_W)
    bounds = DiskArrays().joined(_sorted_in_pools(order_W, length_R, batch_tokens), np.int64)
    batches = _numbers([slice(0, len(bounds) - 1)])
    random.shuffle(batches)
    return OrderPlan(order_W, bounds, batches)


def sorted_plan(length_R: NDArray[np.int64], batch_tokens: int) -> OrderPlan:
    """Return a plan of all rows, shortest first: for evaluation, where the order does not matter."""
    order_R = np.argsort(length_R, kind="stable")
    no_pools_R = np.zeros(len(order_R), dtype=np.int64)
    bounds = _cut_batches(length_R[order_R] + NUM_BOUNDARY_TOKENS, no_pools_R, batch_tokens)
    return OrderPlan(order_R, bounds, np.arange(len(bounds) - 1))


def _numbers(ranges: Sequence[slice]) -> NDArray[np.int64]:
    """Return the numbers of all ranges, on disk."""
    numbers: NDArray[np.int64] = DiskArrays().empty(sum(one.stop - one.start for one in ranges), np.int64)
    done = 0
    for one in ranges:
        for chunk in chunks(one.stop - one.start):
            here = slice(done + chunk.start, done + chunk.stop)
            numbers[here] = np.arange(one.start + chunk.start, one.start + chunk.stop)
        done += one.stop - one.start
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


def cursor(
    length_R: NDArray[np.int64], batch_tokens: int, seed: int, epoch: int, batch: int, blocks: Sequence[Block] = ()
) -> Iterator["Turn"]:
    """Yield batches without end, from batch `batch` of epoch `epoch` on; a later start takes no longer."""
    while True:
        plan = shuffled_plan(length_R, batch_tokens, seed, epoch, blocks)
        for index in range(batch, plan.num_batches):
            yield Turn(epoch, index, plan.rows_of(index), plan.blocks_ahead(index, is_first=index == batch))
        epoch, batch = epoch + 1, 0


@dataclass(frozen=True)
class Turn:
    """Identity of one batch of the endless sequence: its epoch, its index in the epoch, and its rows."""

    epoch: int
    batch: int
    rows_B: NDArray[np.int64]
    blocks_ahead: Sequence[int] = ()  # blocks to read ahead
