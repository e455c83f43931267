"""A batch in parts that fit into memory; their gradients add up to that of the whole."""

import itertools
import logging
from typing import Generic, Protocol, Self, TypeVar

import torch

from clozeline.params import FinetuneParams, PretrainParams
from clozeline.training.out_of_memory import remedies

_LOG = logging.getLogger(__name__)


class Divisible(Protocol):
    """Rows that can be taken apart."""

    @property
    def num_rows(self) -> int: ...

    @property
    def num_slots(self) -> int:
        """Tokens, padding among them: what memory is needed for."""

    def rows(self, first: int, last: int) -> Self: ...

    def silent(self) -> Self:
        """The same rows, asked for nothing."""

    def to(self, device: torch.device) -> Self: ...


Rows = TypeVar("Rows", bound=Divisible)


class MicroBatches(Generic[Rows]):
    """Cuts batches into parts of at most so many slots, on their way to the device."""

    def __init__(
        self,
        most_slots: int | None,
        device: torch.device,
        longest_row: int = 1,
        remedies: str = "take a smaller model, or shorter rows",
    ) -> None:
        """`most_slots`: None is no bound. `longest_row`: tokens that any bound in params.yaml has to leave room for.
        `remedies`: what helps where one row does not fit.
        """
        self.most_slots = most_slots
        self.remedies = remedies
        self._device = device
        self._longest_row = longest_row

    @classmethod
    def of(cls, params: PretrainParams | FinetuneParams, device: torch.device) -> Self:
        return cls(params.micro_batch_tokens, device, params.max_length, remedies(params))

    def parts(self, batch: Rows, rows_short: int = 0) -> list[Rows]:
        """Parts of nearly equal numbers of rows; each has one row at least.

        `rows_short`: how many rows more another process has. They are as many parts as it needs, for a model that is
        divided among processes is put together for each part by all of them: of fewer rows than parts, some are silent.
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
        """Half the tokens of the largest part; None: that is one row already. `rows_short`: as for `parts`."""
        largest_rows = -(-(batch.num_rows + rows_short) // len(self._cut(batch, rows_short)))
        return None if largest_rows == 1 else largest_rows * (batch.num_slots // batch.num_rows) // 2

    def bound_to_set(self, batch: Rows, rows_short: int = 0) -> int | None:
        """What to write as `micro_batch_tokens`, so that less of such a batch is in memory at once; None: nothing that
        may stand there does that. `rows_short`: as for `parts`."""
        half = self.half(batch, rows_short)
        if half is None or self._longest_row >= 2 * half:
            return None
        return max(half, self._longest_row)

    def halve(self, batch: Rows, rows_short: int = 0) -> bool:
        """After memory ran out: parts half as large from now on. False: a part was one row already.

        Processes that train together all halve theirs to the same.
        """
        half = self.half(batch, rows_short)
        if half is None:
            return False
        self.most_slots = half
        _LOG.warning(
            "out of memory with %d tokens at once: going on with %d at once, in as many parts as the batch needs;"
            " the result is that of the whole batch. Set `micro_batch_tokens: %d` to start so",
            2 * half,
            half,
            max(half, self._longest_row),
        )
        return True
