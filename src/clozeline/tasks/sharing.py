"""Batches and loss of a task in several processes: each computes its share of the rows of every batch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from clozeline.tasks.task import Task
from clozeline.training.distribution import Processes
from clozeline.training.micro_batches import share_of
from clozeline.training.state import Batch


@dataclass(frozen=True)
class Share:
    """Rows of a batch."""

    inputs: Any
    counts: bool = True
    """Whether the rows have targets."""

    @property
    def num_rows(self) -> int:
        num_rows: int = self.inputs.num_rows
        return num_rows

    @property
    def num_slots(self) -> int:
        num_slots: int = self.inputs.num_slots
        return num_slots

    def rows(self, first: int, last: int) -> Self:
        return replace(self, inputs=self.inputs.rows(first, last))

    def silent(self) -> Self:
        return replace(self, counts=False)

    def to(self, device: torch.device) -> Self:
        return replace(self, inputs=self.inputs.to(device))


class LossOfShare(nn.Module):
    """Loss of a task, summed over the targets of a share, as a module that sums its gradients over all processes."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model = task.model
        self._task = task

    def forward(self, share: Share) -> Tensor:
        return self._task.loss_sum(share.inputs) * float(share.counts)


def shared(
    task: Task, processes: Processes
) -> tuple[Callable[[int, int], Iterator[Batch[Any]]], Callable[[Any], Tensor]]:
    """Return `batches_from` and `loss_sum` for one of `processes`: the task's own if it is alone."""
    if processes.world_size == 1:
        return task.batches_from, task.loss_sum

    def batches_from(epoch: int, index: int) -> Iterator[Batch[Any]]:
        for batch in task.batches_from(epoch, index):
            own, rows_short = share_of(Share(batch.inputs), processes.rank, processes.world_size)
            yield replace(batch, inputs=own, rows_short=rows_short)

    def smallest() -> Share:
        return Share(next(task.batches_from(0, 0)).inputs.rows(0, 1))

    return batches_from, processes.wrap(LossOfShare(task), smallest)
