"""Requested positions: the last layer and the head compute only these.

The last layer still computes keys and values at all positions; its queries, attention output, MLP and norms run at the
requested positions only. The results are equal up to rounding, at a fraction of the cost.

Shapes: B rows, L tokens, X any axis; Q positions of each row; P any axes of positions: T of all rows, or [B, Q].
"""

from dataclasses import dataclass
from typing import Protocol, Self, cast

import torch
from torch import Tensor

_MOST = 0.5
"""Share of all positions above which gathering them saves nothing."""


class Positions(Protocol):
    """The requested positions of each row, in order."""

    @property
    def position_BQ(self) -> Tensor:
        """Position of each query in its row; [1, Q] if the same in all rows."""

    @property
    def are_few(self) -> bool:
        """Whether computing the last layer for these positions alone pays off."""

    def of(self, values_BLX: Tensor) -> Tensor:
        """Return `values_PX` at these positions."""

    def as_queries(self, values_PX: Tensor) -> Tensor:
        """Return `values_BQX`: attention needs the same number of queries in each row."""

    def from_queries(self, values_BQX: Tensor) -> Tensor:
        """Return `values_PX`: the inverse of `as_queries`."""


class FirstPosition:
    """The first token of each row, usually [CLS]; P is [B, 1]."""

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
    """The same number of positions in each row, that of the row with the most; P is [B, Q]."""

    position_BQ: Tensor
    length: int
    are_few = True

    @classmethod
    def where(cls, is_asked_BL: Tensor) -> Self:
        """Choose the requested positions in order, and the first position of each row, so that there is always one.

        Rows with fewer than the most are filled up with other positions.
        """
        length = is_asked_BL.shape[1]
        position_L = torch.arange(length, device=is_asked_BL.device)
        asked_BL = (is_asked_BL | (position_L == 0)).long()
        num_asked = asked_BL.sum(dim=1).max()
        # Requested positions have distinct keys, so that their order does not depend on how ties are broken.
        key_BL = asked_BL * (length - position_L)
        # The number stays a tensor, so that a traced graph computes it.
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
    """Any number of positions in each row; P is T."""

    slot_T: Tensor
    """Indices into the flattened [B × L], ascending."""
    num_rows: int
    length: int
    most_in_row: int
    """Upper bound of the positions in a row."""

    @property
    def are_few(self) -> bool:
        if torch.compiler.is_compiling():  # One compiled graph serves any number of targets.
            return False
        return 0 < len(self.slot_T) < _MOST * self.num_rows * self.length

    @property
    def _row_and_place_T(self) -> tuple[Tensor, Tensor]:
        """Row of each position, and its rank among the positions of that row."""
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
        """Return `values_BQX`, zero where a row has fewer than Q positions."""
        values_BQX = values_PX.new_zeros(self.num_rows, self.most_in_row, *values_PX.shape[1:])
        return values_BQX.index_put(self._row_and_place_T, values_PX)

    def from_queries(self, values_BQX: Tensor) -> Tensor:
        return values_BQX[self._row_and_place_T]
