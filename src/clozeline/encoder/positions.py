"""Positions that an encoder is asked for: its last layer and its head compute these alone.

Keys and values of the last layer are still those of all positions; queries, the output of attention, the MLP and the
norms are those of what is asked for. The same numbers to rounding, for a share of the cost.

Shapes: B rows, L tokens, X any axis; Q positions of each row; P any axes of positions: T of all rows, or [B, Q].
"""

from dataclasses import dataclass
from typing import Protocol, Self, cast

import torch
from torch import Tensor

_MOST = 0.5
"""Share of all positions above which going to them one by one is no gain."""


class Positions(Protocol):
    """Which positions of each row are asked for, in their order."""

    @property
    def position_BQ(self) -> Tensor:
        """Where each query stands in its row; [1, Q] if in all rows at the same place."""

    @property
    def are_few(self) -> bool:
        """Whether it pays to compute the last layer for them alone."""

    def of(self, values_BLX: Tensor) -> Tensor:
        """`values_PX` there."""

    def as_queries(self, values_PX: Tensor) -> Tensor:
        """`values_BQX`: attention is given rows of queries, of one length."""

    def from_queries(self, values_BQX: Tensor) -> Tensor:
        """`values_PX`."""


class FirstPosition:
    """[CLS], or what stands there; P is [B, 1]."""

    are_few = True

    @property
    def position_BQ(self) -> Tensor:
        return torch.zeros(1, 1, dtype=torch.long)

    def of(self, values_BLX: Tensor) -> Tensor:
        return values_BLX[:, :1]

    def as_queries(self, values_PX: Tensor) -> Tensor:
        return values_PX

    def from_queries(self, values_BQX: Tensor) -> Tensor:
        return values_BQX


@dataclass(frozen=True)
class ChosenPositions:
    """As many of each row as of the row with the most; P is [B, Q]."""

    position_BQ: Tensor
    length: int
    are_few = True

    @classmethod
    def where(cls, is_asked_BL: Tensor) -> Self:
        """Those that are asked for, in their order, and of each row the first: so there are never none. Where a row has
        fewer than another, others follow them."""
        length = is_asked_BL.shape[1]
        position_L = torch.arange(length, device=is_asked_BL.device)
        asked_BL = (is_asked_BL | (position_L == 0)).long()
        num_asked = asked_BL.sum(dim=1).max()
        # Different numbers for all that are asked for: no rule for equal ones decides their order.
        key_BL = asked_BL * (length - position_L)
        # A tracer takes the tensor for the number it is, and the graph computes it.
        return cls(key_BL.topk(cast(int, num_asked), dim=1).indices, length)

    def of(self, values_BLX: Tensor) -> Tensor:
        first_B1 = self.length * torch.arange(values_BLX.shape[0], device=values_BLX.device).unsqueeze(1)
        return values_BLX.flatten(0, 1)[self.position_BQ + first_B1]

    def as_queries(self, values_PX: Tensor) -> Tensor:
        return values_PX

    def from_queries(self, values_BQX: Tensor) -> Tensor:
        return values_BQX


@dataclass(frozen=True)
class Slots:
    """Any number of each row; P is T."""

    slot_T: Tensor
    """Indices into the flattened [B × L], rising."""
    num_rows: int
    length: int
    most_in_row: int
    """At least as many as any row has."""

    @property
    def are_few(self) -> bool:
        if torch.compiler.is_compiling():  # One graph is for any number of targets.
            return False
        return 0 < len(self.slot_T) < _MOST * self.num_rows * self.length

    @property
    def _row_and_place_T(self) -> tuple[Tensor, Tensor]:
        """The row of each, and its place among those of the row."""
        row_T = self.slot_T // self.length
        starts_B = self.length * torch.arange(self.num_rows, device=self.slot_T.device)
        first_B = torch.searchsorted(self.slot_T, starts_B)
        return row_T, torch.arange(len(self.slot_T), device=self.slot_T.device) - first_B[row_T]

    @property
    def position_BQ(self) -> Tensor:
        return self.as_queries(self.slot_T % self.length)

    def of(self, values_BLX: Tensor) -> Tensor:
        return values_BLX.flatten(0, 1)[self.slot_T]

    def as_queries(self, values_PX: Tensor) -> Tensor:
        """Zero where a row has fewer than Q."""
        values_BQX = values_PX.new_zeros(self.num_rows, self.most_in_row, *values_PX.shape[1:])
        return values_BQX.index_put(self._row_and_place_T, values_PX)

    def from_queries(self, values_BQX: Tensor) -> Tensor:
        return values_BQX[self._row_and_place_T]
