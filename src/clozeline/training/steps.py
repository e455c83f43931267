"""One optimizer step after another: gradients of a batch's parts summed, clipped, applied."""

import math
from collections.abc import Callable
from typing import Any, Generic

import torch
from torch import Tensor, nn

from clozeline.errors import TrainingError
from clozeline.training.hardware import Hardware
from clozeline.training.randomness import begin_step
from clozeline.training.state import Batch, Inputs


class Steps(Generic[Inputs]):
    """Takes steps, and remembers their losses until someone reads them.

    On a GPU reading waits for all that was asked of it: losses are then read where a point of the curve or a
    checkpoint needs them, and the processor runs ahead in between. On a CPU reading costs nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_sum: Callable[[Inputs], Tensor],
        clip_norm: float,
        hardware: Hardware[Inputs],
        seed: int,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._loss_sum = loss_sum
        self._clip_norm = clip_norm
        self._hardware = hardware
        self._seed = seed
        self._unread: list[tuple[int, Batch[Any], Tensor, Tensor]] = []
        self.must_read = hardware.precision.device.type == "cpu"
        self.last_norm = 0.0

    def take(self, batch: Batch[Inputs], step: int) -> None:
        """Change the weights by what `batch` teaches.

        Raises:
            TrainingError: memory ran out, and the batch cannot be taken apart further.
        """
        loss_sum = self._sum_gradients(batch, step)
        scaler = self._hardware.precision.scaler
        scaler.unscale_(self._optimizer)
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_norm)
        self._unread.append((step, batch, loss_sum, norm))
        if self.must_read and self._hardware.processes.world_size == 1:
            self._stop_if_not_finite(step, batch, loss_sum.item(), norm.item())
        scaler.step(self._optimizer)
        scaler.update()
        self._optimizer.zero_grad()

    def read(self) -> float:
        """Sum of the losses since the last call, over all processes, nats.

        Raises:
            TrainingError: a loss or a gradient was not finite; it names the first step and its batch.
        """
        if not self._unread:
            return 0.0
        losses = self._hardware.processes.sum(torch.stack([loss.double() for _, _, loss, _ in self._unread])).tolist()
        norms = torch.stack([_local(norm) for *_, norm in self._unread]).tolist()
        for (step, batch, _, _), loss, norm in zip(self._unread, losses, norms, strict=True):
            self._stop_if_not_finite(step, batch, loss, norm)
        self.last_norm = norms[-1]
        self._unread.clear()
        return math.fsum(losses)

    def _sum_gradients(self, batch: Batch[Inputs], step: int) -> Tensor:
        while True:
            try:
                return self._attempt(batch, step)
            except torch.OutOfMemoryError as error:
                self._optimizer.zero_grad()
                if self._hardware.processes.world_size > 1 or not self._hardware.micro_batches.halve(batch.inputs):
                    raise _out_of_memory(batch) from error

    def _attempt(self, batch: Batch[Inputs], step: int) -> Tensor:
        """Gradient of the mean over the batch's targets; returns the sum over this process's."""
        processes, precision = self._hardware.processes, self._hardware.precision
        begin_step(self._seed, step, processes.rank, precision.device)
        scale = processes.loss_scale / batch.num_targets
        parts = self._hardware.micro_batches.parts(batch.inputs, batch.rows_short)
        total = torch.zeros((), device=precision.device)
        for place, part in enumerate(parts):
            with processes.one_sum(self._loss_sum, is_last=place == len(parts) - 1):
                with precision.autocast():
                    loss_sum = self._loss_sum(part)
                precision.scaler.scale(loss_sum * scale).backward()
            total += loss_sum.detach()
        return total

    def _stop_if_not_finite(self, step: int, batch: Batch[Any], loss_sum: float, norm: float) -> None:
        """fp16 gradients that are not finite are no fault: the scaler skips their step and scales less."""
        is_scaled = self._hardware.precision.scaler.is_enabled()
        if math.isfinite(loss_sum) and (math.isfinite(norm) or is_scaled):
            return
        raise TrainingError(
            f"training diverged at step {step}, on batch {batch.index} of epoch {batch.epoch}",
            given=f"loss {loss_sum / batch.num_targets}, gradient norm {norm}",
            expected="finite numbers",
            do="lower `learning_rate` or lengthen the warm-up in params.yaml, then run again",
        )


def _local(norm: Tensor) -> Tensor:
    """Of sharded gradients the norm is sharded too."""
    whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole.detach().double()


def _out_of_memory(batch: Batch[Any]) -> TrainingError:
    return TrainingError(
        f"out of memory on batch {batch.index} of epoch {batch.epoch}",
        given=f"{batch.num_tokens:,} tokens in the batch",
        expected="parts of it that fit into memory",
        do="set a lower `micro_batch_tokens` in params.yaml (the result stays the same), or a smaller model",
    )
