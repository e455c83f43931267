"""Batches of pairs for an encoder. A part of a batch knows the whole batch, because each pair is a negative of others.

The softmax of in-batch negatives runs over the whole batch. So a part that fits into memory is not a batch of its own:
it encodes the other texts without gradients, and the gradients of all parts add up to that of the whole batch
(GradCache, Gao et al. 2021, section 3).

Shapes: B pairs of a batch, P pairs of a part of it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from clozeline.tasks.encoded import EncodedBatch
from clozeline.tasks.text_rows import Ids, TextRows


@dataclass(frozen=True)
class Targets:
    """Targets of the pairs of a batch."""

    score_B: Tensor | None
    """Scores, 0-1; None for matching pairs."""
    first_B: Tensor
    """Number of the first text, the same for equal texts,"""
    second_B: Tensor
    """... and of the second text. Pairs that share a text are not negatives of each other."""

    def rows(self, first: int, last: int) -> Self:
        return self._each(lambda tensor: tensor[first:last])

    def to(self, device: torch.device) -> Self:
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        score_B = None if self.score_B is None else change(self.score_B)
        return type(self)(score_B, change(self.first_B), change(self.second_B))


@dataclass(frozen=True)
class PairBatch:
    """Pairs `first` … `last - 1` of a batch, with the whole batch."""

    firsts: EncodedBatch
    seconds: EncodedBatch
    targets: Targets
    first: int
    last: int

    @classmethod
    def whole(cls, firsts: EncodedBatch, seconds: EncodedBatch, targets: Targets) -> Self:
        return cls(firsts, seconds, targets, 0, firsts.num_rows)

    @property
    def num_rows(self) -> int:
        return self.last - self.first

    @property
    def num_slots(self) -> int:
        """Number of tokens, including padding, of its own pairs, for which gradients are kept."""
        return self.num_rows * (self.firsts.num_slots + self.seconds.num_slots) // self.firsts.num_rows

    @property
    def is_whole(self) -> bool:
        return self.num_rows == self.firsts.num_rows

    def rows(self, first: int, last: int) -> Self:
        return type(self)(self.firsts, self.seconds, self.targets, self.first + first, self.first + last)

    def to(self, device: torch.device) -> Self:
        firsts, seconds = self.firsts.to(device), self.seconds.to(device)
        return type(self)(firsts, seconds, self.targets.to(device), self.first, self.last)

    def others(self) -> Iterator[Self]:
        """Yield all pairs before and after this part, in parts of at most its size."""
        starts = [*range(0, self.first, self.num_rows), *range(self.last, self.firsts.num_rows, self.num_rows)]
        ends = [self.first if start < self.first else self.firsts.num_rows for start in starts]
        for start, end in zip(starts, ends, strict=True):
            yield type(self)(self.firsts, self.seconds, self.targets, start, min(start + self.num_rows, end))


@dataclass(frozen=True)
class PairRows:
    """Tokenized pairs of one split of the task."""

    firsts: TextRows
    seconds: TextRows
    score_T: Tensor | None
    first_T: Ids
    second_T: Ids

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def length_T(self) -> Ids:
        """Number of tokens in both texts of each pair."""
        return self.firsts.length_T + self.seconds.length_T

    def batch(self, rows_B: Ids) -> PairBatch:
        places_B = torch.from_numpy(rows_B)
        targets = Targets(
            None if self.score_T is None else self.score_T[places_B],
            torch.from_numpy(self.first_T[rows_B]),
            torch.from_numpy(self.second_T[rows_B]),
        )
        return PairBatch.whole(self.firsts.encoded(rows_B), self.seconds.encoded(rows_B), targets)
