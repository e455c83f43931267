"""Optimizer steps: gradients of a batch's parts are summed, clipped and applied.

Randomness in a step (dropout, skipped layers) is a function of (seed, step, rank): there is no state to keep.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor, nn

from clozeline.params.model import OptimizerParams
from clozeline.system.errors import TrainingError
from clozeline.training.micro_batches import Hardware, noting_shortage
from clozeline.training.state import Batch, Inputs, Scored

# Consecutive fp16 steps without a finite gradient: by then the scale has fallen from 2^16 to 2^-34.
_MOST_SKIPPED = 50
# Number of first steps in which several processes continue if memory runs out in one of them. The optimizer makes its
# state in the first, and batches are of about one size.
_NUM_WARY = 3


def begin_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Reseed torch's random streams, on the CPU and on `device`. It takes some microseconds.

    A resumed training therefore draws the same as an uninterrupted one, on any device, though no checkpoint holds a
    random state. Each process draws for itself, though only one writes checkpoints.
    """
    stream = int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0])
    torch.default_generator.manual_seed(stream)
    if device.type == "cuda":
        torch.cuda.manual_seed(stream)


def clip_gradients(model: nn.Module, params: OptimizerParams) -> Tensor:
    """Scale the gradients down to the norm `clip_norm`; return their norm before (Pascanu et al. 2013)."""
    return nn.utils.clip_grad_norm_(model.parameters(), params.clip_norm)


@dataclass(eq=False)
class Steps(Generic[Inputs]):
    """Takes steps, and keeps their losses until they are read.

    Reading on a GPU waits for all queued work. Losses are therefore read only for a point of the curve or a checkpoint,
    and the CPU runs ahead in between. On a CPU reading costs nothing.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_sum: Callable[[Inputs], Tensor | Scored]
    params: OptimizerParams
    hardware: Hardware[Inputs]
    seed: int
    last_norm: float = 0.0
    _unread: list[tuple[int, Batch[Any], Tensor, Tensor]] = field(default_factory=list)
    _num_wary: int = _NUM_WARY
    _num_skipped: int = 0

    def __post_init__(self) -> None:
        self.must_read = self.hardware.precision.device.type == "cpu"

    def take(self, batch: Batch[Inputs], step: int) -> None:
        """Update the weights from `batch`.

        Raises:
            TrainingError: memory ran out and the batch cannot be split further; or, on a CPU, the loss or the gradient
                is not finite.
        """
        sums = self._sum_gradients(batch, step)
        scaler = self.hardware.precision.scaler
        scaler.unscale_(self.optimizer)
        norm = clip_gradients(self.model, self.params)
        self._unread.append((step, batch, sums, norm))
        if self.must_read and self.hardware.processes.world_size == 1:
            self._stop_if_not_finite(step, batch, sums[0].item(), norm.item())
        with self._explaining_memory(batch, None):
            scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad()

    def read(self) -> tuple[float, float]:
        """Return the sum of the losses since the last call, over all processes, in nats, and the number of right
        answers (NaN: not counted).

        Raises:
            TrainingError: a loss or a gradient was not finite; the error names the first such step and its batch.
        """
        if not self._unread:
            return 0.0, 0.0
        sums = torch.stack([of_step.double() for _, _, of_step, _ in self._unread], dim=1)
        losses, num_right = self.hardware.processes.sum(sums).tolist()
        norms = torch.stack([_local(norm) for *_, norm in self._unread]).tolist()
        for (step, batch, _, _), loss, norm in zip(self._unread, losses, norms, strict=True):
            self._stop_if_not_finite(step, batch, loss, norm)
            self._stop_if_all_are_skipped(step, batch, norm)
        self.last_norm = norms[-1]
        self._unread.clear()
        return math.fsum(losses), math.fsum(num_right)

    def _sum_gradients(self, batch: Batch[Inputs], step: int) -> Tensor:
        processes, micro_batches = self.hardware.processes, self.hardware.micro_batches
        can_sum_later = processes.sharding == "ddp"  # each process adds up gradients until a later pass sums them
        if processes.world_size > 1 and not (can_sum_later and self._num_wary):
            with self._explaining_memory(batch, micro_batches.bound_to_set(batch.inputs, batch.rows_short)):
                return self._attempt(batch, step, is_summed=True)
        total = self._in_parts_that_fit(batch, step)
        if processes.world_size > 1:
            self._num_wary -= 1
            with self._explaining_memory(batch, micro_batches.bound_to_set(batch.inputs, batch.rows_short)):
                # DDP sums in a backward pass: this one adds zero to the gradient.
                self._add_gradient(micro_batches.parts(batch.inputs, batch.rows_short)[-1], scale=0.0, is_summed=True)
        return total

    def _in_parts_that_fit(self, batch: Batch[Inputs], step: int) -> Tensor:
        """Compute gradients in each process. If memory runs out in one of them, all use smaller parts."""
        processes, micro_batches = self.hardware.processes, self.hardware.micro_batches
        while True:
            with noting_shortage() as shortage:
                total = self._attempt(batch, step, is_summed=False)
            if not processes.any(shortage.requested is not None):
                return total
            self.optimizer.zero_grad()
            if not micro_batches.halve(batch.inputs, batch.rows_short):
                raise self._out_of_memory(batch, None, shortage.requested)
            self._num_wary = _NUM_WARY

    def _attempt(self, batch: Batch[Inputs], step: int, is_summed: bool) -> Tensor:
        """Compute the gradient of the mean over the batch's targets; return the sums over this process's targets: loss,
        and number of right answers.

        `is_summed`: whether the gradient is summed over all processes in the end.
        """
        processes, device = self.hardware.processes, self.hardware.precision.device
        begin_step(self.seed, step, processes.rank, device)
        # The engines average over the processes, but the loss is divided by all targets already.
        scale = processes.world_size / batch.num_targets
        parts = self.hardware.micro_batches.parts(batch.inputs, batch.rows_short)
        total = torch.zeros(2, device=device)
        for place, part in enumerate(parts):
            total += self._add_gradient(part, scale, is_summed and place == len(parts) - 1)
        return total

    def _add_gradient(self, part: Inputs, scale: float, is_summed: bool) -> Tensor:
        precision = self.hardware.precision
        with self.hardware.processes.one_sum(self.loss_sum, is_last=is_summed):
            with precision.autocast():
                loss_sum, num_right = Scored.of(self.loss_sum(part))
            precision.scaler.scale(loss_sum * scale).backward()
        return torch.stack((loss_sum.detach(), num_right.to(loss_sum.dtype)))

    def _stop_if_not_finite(self, step: int, batch: Batch[Any], loss_sum: float, norm: float) -> None:
        """Raise if the loss or the gradient is not finite.

        With fp16 a gradient that is not finite is not an error: the scaler skips the step and lowers the scale.
        """
        is_scaled = self.hardware.precision.scaler.is_enabled()
        if math.isfinite(loss_sum) and (math.isfinite(norm) or is_scaled):
            return
        raise TrainingError(
            f"training diverged at step {step}, on batch {batch.index} of epoch {batch.epoch}:"
            f" loss {loss_sum / batch.num_targets}, gradient norm {norm}",
            do="lower `optimizer.learning_rate` or lengthen the warm-up, then run again",
        )

    def _stop_if_all_are_skipped(self, step: int, batch: Batch[Any], norm: float) -> None:
        """Raise after too many skipped steps in a row: the scale was not the cause."""
        self._num_skipped = 0 if math.isfinite(norm) else self._num_skipped + 1
        if self._num_skipped < _MOST_SKIPPED:
            return
        raise TrainingError(
            f"training diverged at step {step}, on batch {batch.index} of epoch {batch.epoch}:"
            f" a gradient that is not finite in {_MOST_SKIPPED} steps in a row, at any scale",
            do="set `precision` to bf16 or fp32, or lower `optimizer.learning_rate`, then run again",
        )

    @contextlib.contextmanager
    def _explaining_memory(self, batch: Batch[Any], bound: int | None) -> Iterator[None]:
        """Explain an out-of-memory error in the block.

        Raises:
            TrainingError: memory ran out in the block.
        """
        with noting_shortage() as shortage:
            yield
        if shortage.requested is not None:
            raise self._out_of_memory(batch, bound, shortage.requested)

    def _out_of_memory(self, batch: Batch[Any], bound: int | None, requested: str | None) -> TrainingError:
        """Return the error to raise.

        Args:
            bound: lower limit of the tokens in memory at once that may help; None: even one row does not fit.
            requested: amount that was requested; None: memory ran out in another process.
        """
        if bound is None:
            do = self.hardware.micro_batches.remedies
        else:
            do = f"set `micro_batch_tokens: {bound}` or less: parts of the batch give the same step"
        return TrainingError(
            f"out of memory on batch {batch.index} of epoch {batch.epoch}, of {batch.num_tokens:,} tokens:"
            f" {requested or 'memory ran out in another process'}",
            do=do,
        )


def _local(norm: Tensor) -> Tensor:
    """Return the whole norm; the norm of sharded gradients is sharded too."""
    whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole.detach().double()
