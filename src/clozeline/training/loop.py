"""The training loop: forward, backward, clip, step, log, validate, checkpoint.

It knows nothing about masks or labels: it gets a stream of batches that can start at any index, and a summed loss.
Validation tells whether the model is still improving, and when it was best.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic

import torch
from torch import Tensor, nn

from clozeline.params.model import OptimizerParams
from clozeline.system.errors import ArtifactError, TrainingError
from clozeline.training import curves, distribution, micro_batches, optimizers
from clozeline.training.checkpoints import SHARDS, Checkpoints
from clozeline.training.state import Batch, Callback, Inputs, Scored, State
from clozeline.training.steps import Steps

# Size of the trained weights above which several processes write a checkpoint together, each its share: a billion
# parameters, whose state with Adam is a file of 12 GB.
SHARDED_ABOVE_BYTES = 4 * 10**9
# Number of consecutive batches without a target after which the training stops with an error.
_MOST_EMPTY_BATCHES = 1000


@dataclass
class Validation:
    """When to validate, how to measure, and when to stop."""

    every_steps: int
    patience: int | None  # number of validation passes without a lower loss after which training stops; None: never
    measure: Callable[[], curves.Quality]  # measures the current model on held-out text
    best_weights: dict[str, Tensor] | None = None

    def take(self, model: nn.Module, state: State, processes: distribution.Processes) -> curves.ValidationPass:
        """Measure the model. With `patience`, keep the weights if they are the best so far. Training is not affected.

        All processes take the figures that the first one measured, so that they stop at the same step and do not wait
        for each other forever.
        """
        model.eval()
        validation = curves.ValidationPass(state.step, *processes.of_the_first(self.measure()))
        model.train()
        state.validations.append(validation)
        if self.patience is not None and state.best_validation is validation:
            self.best_weights = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
        return validation

    def has_lost_patience(self, state: State) -> bool:
        best = state.best_validation
        if self.patience is None or best is None:
            return False
        return len(state.validations) - 1 - state.validations.index(best) >= self.patience

    def restore_best(self, model: nn.Module) -> None:
        if self.best_weights is not None:
            model.load_state_dict(self.best_weights)


@dataclass(frozen=True)
class Loop(Generic[Inputs]):
    """One training, from its newest checkpoint (or from the start) to its last step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    # Maps `(epoch, index)` to the endless sequence of batches from there on.
    batches_from: Callable[[int, int], Iterator[Batch[Inputs]]]
    # Maps a batch to its loss in nats, summed over targets, perhaps with the number of right answers.
    loss_sum: Callable[[Inputs], Tensor | Scored]
    # Maps a step, counted from 0, to the learning rate as a fraction of each group's peak.
    fraction_at: Callable[[int], float]
    total_steps: int
    params: OptimizerParams
    log_every_steps: int
    checkpoint_every_steps: int
    checkpoints: Checkpoints
    hardware: micro_batches.Hardware[Inputs]
    seed: int  # seed of the randomness in a step (dropout)
    validation: Validation | None = None

    def run(self, state: State, callback: Callback) -> State:
        """Train from `state` to the last step. A run that was killed at any step and resumed ends with the same bytes.

        Raises:
            TrainingError: the loss or the gradient is not finite, or no batch has a target.
        """
        self.model.train()
        state.note_world_size(self.hardware.processes.world_size)
        callback.on_start(state)
        steps = Steps(self.model, self.optimizer, self.loss_sum, self.params, self.hardware, self.seed)
        batches = self.batches_from(state.epoch, state.index)
        num_empty = 0
        while state.step < self.total_steps and not self._is_done(state):
            batch = next(batches)
            num_empty = 0 if batch.num_targets else num_empty + 1
            if num_empty > _MOST_EMPTY_BATCHES:
                raise TrainingError(
                    f"{_MOST_EMPTY_BATCHES + 1:,} batches had nothing to predict, up to batch {batch.index} of epoch"
                    f" {batch.epoch}",
                    do="raise `masking.mask_rate`, or add texts that are not all special or unknown tokens",
                )
            self._take(batch, steps, state, callback)
        if self.validation is not None:
            self.validation.restore_best(self.model)
        callback.on_end(state)
        return state

    def _take(self, batch: Batch[Inputs], steps: Steps[Inputs], state: State, callback: Callback) -> None:
        state.epoch, state.index = batch.epoch, batch.index + 1
        if batch.num_targets == 0:
            state.num_empty_batches += 1
            return
        optimizers.scale_learning_rates(self.optimizer, self.fraction_at(state.step))
        steps.take(batch, state.step)
        state.count(batch)
        is_last = state.step == self.total_steps
        is_point = state.step % self.log_every_steps == 0 or is_last
        is_checkpoint = state.step % self.checkpoint_every_steps == 0 and not is_last
        if steps.must_read or is_point or is_checkpoint:
            state.add(*steps.read())
        if is_point:
            self._draw(steps, state, callback)
        if self.validation is not None and (is_last or state.step % self.validation.every_steps == 0):
            callback.on_validation(self.validation.take(self.model, state, self.hardware.processes))
        if self._is_done(state) and not is_point:
            self._draw(steps, state, callback)
        if is_checkpoint:
            self.save(state)

    def _draw(self, steps: Steps[Inputs], state: State, callback: Callback) -> None:
        """Add a point to the curve."""
        state.add(*steps.read())
        callback.on_point(state.close_window(self.optimizer.param_groups[0]["lr"], steps.last_norm))

    def _is_done(self, state: State) -> bool:
        return self.validation is not None and self.validation.has_lost_patience(state)

    def save(self, state: State, **more: object) -> None:
        """Save a checkpoint; `more` is stored with it and comes back from `Checkpoints.load_newest`.

        The state of a large model is divided among files, if there are several processes and nothing more to store.
        """
        processes = self.hardware.processes
        best = self.validation.best_weights if self.validation is not None else None
        rest = {"scaler": self.hardware.precision.scaler.state_dict(), "state": asdict(state), **more}
        if self._is_large and not more:
            from clozeline.training import sharding

            tensors = sharding.tensors_of(self.model, self.optimizer, best)
            rest["has_best_weights"] = best is not None
            sharding.save(self.checkpoints, state.step, tensors, rest, processes)
            return
        model, optimizer = processes.states(self.model, self.optimizer)
        best_weights = None if best is None else processes.put_together(best)
        if processes.is_first:
            whole = {"model": model, "optimizer": optimizer, "best_weights": best_weights}
            self.checkpoints.save(state.step, whole | rest)
        processes.wait()

    @property
    def _is_large(self) -> bool:
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        size_bytes = sum(weight.numel() * weight.element_size() for weight in trained)
        return self.hardware.processes.world_size > 1 and size_bytes > SHARDED_ABOVE_BYTES

    def resume(self) -> State:
        """Restore model and optimizer from the newest checkpoint. Without one, return the state of the start.

        Raises:
            ArtifactError: a checkpoint belongs to another run, or processes see different checkpoints.
        """
        saved = self.newest()
        return State() if saved is None else self.restore(saved)

    def newest(self) -> dict[str, Any] | None:
        """Return the newest checkpoint, which is the same in every process; None if there is none.

        Raises:
            ArtifactError: as `resume`.
        """
        processes = self.hardware.processes
        if processes.is_first:
            self.checkpoints.warn_of_other_states()
        saved = self.checkpoints.load_newest()
        own_step = 0 if saved is None else saved["state"]["step"]
        first_step = int(processes.of_the_first(own_step))
        if processes.any(own_step != first_step):
            raise ArtifactError(
                f"processes resume from different steps: {own_step:,} here, {first_step:,} in the first",
                do=f"share {self.checkpoints.folder.parent} at one path, or remove it from all machines",
            )
        return saved

    def restore(self, saved: Mapping[str, Any]) -> State:
        """Restore model and optimizer from what `save` stored."""
        processes = self.hardware.processes
        best: dict[str, Tensor] | None
        if SHARDS in saved:
            from clozeline.training import sharding

            has_best = saved["has_best_weights"]
            best = sharding.restore(saved[SHARDS], self.model, self.optimizer, has_best=has_best, group=processes)
        else:
            processes.restore(self.model, self.optimizer, saved["model"], saved["optimizer"])
            best = saved["best_weights"] and processes.divide(saved["best_weights"], self.model)
        self.hardware.precision.scaler.load_state_dict(saved["scaler"])
        if self.validation is not None:
            self.validation.best_weights = best
        return State.of(saved["state"])
