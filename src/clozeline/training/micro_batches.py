"""Micro-batches: parts of a batch that fit into memory. Their gradients add up to that of the whole."""

import itertools
import logging
from typing import Generic, Protocol, Self, TypeVar

import torch

from clozeline.params import FinetuneParams, PretrainParams
from clozeline.training.out_of_memory import remedies

_LOG = logging.getLogger(__name__)


class Divisible(Protocol):
    """Rows that can be split."""

    @property
    def num_rows(self) -> int: ...

    @property
    def num_slots(self) -> int:
        """Number of tokens, padding included, which determines the memory."""

    def rows(self, first: int, last: int) -> Self: ...

    def silent(self) -> Self:
        """Return the same rows without targets."""

    def to(self, device: torch.device) -> Self: ...


Rows = TypeVar("Rows", bound=Divisible)


def share_of(batch: Rows, rank: int, world_size: int) -> tuple[Rows, int]:
    """Return the rows of process `rank`, and by how many they are fewer than the largest share.

    If there are fewer rows than processes, a process gets one row without targets, because all processes must take part
    in summing the gradients.
    """
    if world_size == 1:
        return batch, 0
    first, last = (batch.num_rows * (rank + place) // world_size for place in (0, 1))
    own = batch.rows(first, last) if first < last else batch.rows(0, 1).silent()
    return own, -(-batch.num_rows // world_size) - own.num_rows


class MicroBatches(Generic[Rows]):
    """Cuts batches into parts of a limited number of slots, and moves them to the device."""

    def __init__(
        self,
        most_slots: int | None,
        device: torch.device,
        longest_row: int = 1,
        remedies: str = "use a smaller model, or shorter rows",
    ) -> None:
        """`most_slots`: limit of a part; None: no limit. `longest_row`: tokens of the longest row, which any limit in
        params.yaml has to hold. `remedies`: what helps if one row does not fit.
        """
        self.most_slots = most_slots
        self.remedies = remedies
        self._device = device
        self._longest_row = longest_row

    @classmethod
    def of(cls, params: PretrainParams | FinetuneParams, device: torch.device) -> Self:
        return cls(params.micro_batch_tokens, device, params.max_length, remedies(params))

    def parts(self, batch: Rows, rows_short: int = 0) -> list[Rows]:
        """Return parts with nearly equal numbers of rows, at least one row each.

        `rows_short`: number of rows by which this share is smaller than the largest. Every process makes as many parts
        as the largest share needs, because all of them gather a sharded model for each part. With fewer rows than
        parts, some parts have no targets.
        """
        return [part.to(self._device) for part in self._cut(batch, rows_short)]

    def _cut(self, batch: Rows, rows_short: int = 0) -> list[Rows]:
        if self.most_slots is None:
            return [batch]
        most_rows = batch.num_rows + rows_short
        num_slots = batch.num_slots * most_rows // batch.num_rows
        if num_slots <= self.most_slots:
            return [batch]
        num_parts = min(-(-num_slots // self.most_slots), most_rows)
        bounds = [batch.num_rows * part // num_parts for part in range(num_parts + 1)]
        spans = itertools.pairwise(bounds)
        return [batch.rows(first, last) if first < last else batch.rows(0, 1).silent() for first, last in spans]

    def half(self, batch: Rows, rows_short: int = 0) -> int | None:
        """Return half the tokens of the largest part; None if that part is one row. `rows_short`: as in `parts`."""
        largest_rows = -(-(batch.num_rows + rows_short) // len(self._cut(batch, rows_short)))
        return None if largest_rows == 1 else largest_rows * (batch.num_slots // batch.num_rows) // 2

    def bound_to_set(self, batch: Rows, rows_short: int = 0) -> int | None:
        """Return a `micro_batch_tokens` that reduces the memory for such a batch; None if no allowed value does.

        `rows_short`: as in `parts`.
        """
        half = self.half(batch, rows_short)
        if half is None or self._longest_row >= 2 * half:
            return None
        return max(half, self._longest_row)

    def halve(self, batch: Rows, rows_short: int = 0) -> bool:
        """Halve the parts from now on, after memory ran out. Return False if a part was one row already.

        Processes that train together all halve theirs to the same size.
        """
        half = self.half(batch, rows_short)
        if half is None:
            return False
        self.most_slots = half
        _LOG.warning(
            "out of memory with %d tokens at once: continuing with parts of %d, which together give the result of the"
            " whole batch. Set `micro_batch_tokens: %d` to start with such parts",
            2 * half,
            half,
            max(half, self._longest_row),
        )
        return True
