"""The one training loop: forward, backward, clip, step, log, checkpoint.

It knows nothing of masks or labels: it is given batches that can start anywhere, and a loss that sums.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from clozeline.errors import TrainingError
from clozeline.training.checkpoint import Checkpoints
from clozeline.training.optimizers import set_learning_rate

Inputs = TypeVar("Inputs")


@dataclass(frozen=True)
class Batch(Generic[Inputs]):
    """One batch and its place in the endless sequence of batches."""

    epoch: int
    index: int
    inputs: Inputs
    num_tokens: int
    """Real tokens, padding left out."""
    num_targets: int


@dataclass(frozen=True)
class CurvePoint:
    """What is known after `step` optimizer steps; the loss is the mean over targets since the point before."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    num_tokens: int


@dataclass
class State:
    """How far a training has come: with the model and the optimizer, all that resuming needs."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    """The next batch of `epoch`."""
    num_tokens: int = 0
    num_targets: int = 0
    num_empty_batches: int = 0
    window_loss_sum: float = 0.0
    window_targets: int = 0
    curve: list[CurvePoint] = field(default_factory=list)

    def count(self, batch: Batch[Any], loss_sum: float) -> None:
        self.step += 1
        self.num_tokens += batch.num_tokens
        self.num_targets += batch.num_targets
        self.window_loss_sum += loss_sum
        self.window_targets += batch.num_targets

    def close_window(self, learning_rate: float, gradient_norm: float) -> CurvePoint:
        """A new point of the curve, over the steps since the one before."""
        mean_loss = self.window_loss_sum / self.window_targets
        point = CurvePoint(self.step, mean_loss, learning_rate, gradient_norm, self.num_tokens)
        self.curve.append(point)
        self.window_loss_sum, self.window_targets = 0.0, 0
        return point


@dataclass(frozen=True)
class Loop(Generic[Inputs]):
    """One training, from its newest checkpoint (or from nothing) to its last step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches_from: Callable[[int, int], Iterator[Batch[Inputs]]]
    """`(epoch, index)` → the batches from there on, without end."""
    loss_sum: Callable[[Inputs], Tensor]
    """Summed over the targets of a batch, nats."""
    learning_rate_at: Callable[[int], float]
    """Step, counted from 0 → learning rate."""
    total_steps: int
    clip_norm: float
    log_every_steps: int
    checkpoint_every_steps: int
    checkpoints: Checkpoints

    def run(self, state: State, on_point: Callable[[CurvePoint], None]) -> State:
        """Train from `state` to the last step; a run killed at any step and resumed ends with the same bytes.

        Raises:
            TrainingError: the loss or the gradient is not finite.
        """
        self.model.train()
        batches = self.batches_from(state.epoch, state.index)
        while state.step < self.total_steps:
            self._take(next(batches), state, on_point)
        return state

    def _take(self, batch: Batch[Inputs], state: State, on_point: Callable[[CurvePoint], None]) -> None:
        state.epoch, state.index = batch.epoch, batch.index + 1
        if batch.num_targets == 0:
            state.num_empty_batches += 1
            return
        learning_rate = self.learning_rate_at(state.step)
        set_learning_rate(self.optimizer, learning_rate)
        loss_sum = self.loss_sum(batch.inputs)
        (loss_sum / batch.num_targets).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm).item()
        _stop_if_not_finite(loss_sum.item(), norm, batch, state)
        self.optimizer.step()
        self.optimizer.zero_grad()
        state.count(batch, loss_sum.item())
        if state.step % self.log_every_steps == 0 or state.step == self.total_steps:
            on_point(state.close_window(learning_rate, norm))
        if state.step % self.checkpoint_every_steps == 0 and state.step < self.total_steps:
            self.checkpoints.save(state.step, self.everything(state))

    def everything(self, state: State) -> dict[str, Any]:
        """What `restore` needs."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "state": asdict(state),
        }

    def resume(self) -> State:
        """Bring model, optimizer and random state to the newest checkpoint; the start, if there is none.

        Raises:
            ArtifactError: a checkpoint belongs to another run.
        """
        saved = self.checkpoints.load_newest()
        return State() if saved is None else self.restore(saved)

    def restore(self, saved: Mapping[str, Any]) -> State:
        """Bring model, optimizer and random state to where `everything` was told."""
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])
        fields = saved["state"]
        return State(**fields | {"curve": [CurvePoint(**point) for point in fields["curve"]]})


def _stop_if_not_finite(loss_sum: float, norm: float, batch: Batch[Any], state: State) -> None:
    if math.isfinite(loss_sum) and math.isfinite(norm):
        return
    raise TrainingError(
        f"training diverged at step {state.step}, on batch {batch.index} of epoch {batch.epoch}",
        given=f"loss {loss_sum / batch.num_targets}, gradient norm {norm}",
        expected="finite numbers",
        do="lower `learning_rate` or lengthen the warm-up in params.yaml, then run again",
    )
