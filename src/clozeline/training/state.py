"""State of a training (batches, points of its curve, validation passes, progress), and listeners that only watch."""

import logging
from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from clozeline.training.curves import CurvePoint, ValidationPass

_LOG = logging.getLogger(__name__)

Inputs = TypeVar("Inputs")

_PLATEAU_NATS = 0.15


class Scored(NamedTuple):
    """Result of a batch, summed over its targets."""

    loss_sum: Tensor  # nats; the gradient flows through it
    num_right: Tensor  # number of targets whose likeliest answer is right; NaN: not counted

    @classmethod
    def of(cls, found: "Tensor | Scored") -> "Scored":
        """Return the result of a loss function, which may give the loss alone."""
        return found if isinstance(found, Scored) else cls(found, torch.full_like(found.detach(), torch.nan))


@dataclass(frozen=True)
class Batch(Generic[Inputs]):
    """Input of one optimizer step, and its index in the endless sequence of batches."""

    epoch: int
    index: int
    inputs: Inputs  # this process's part of the batch: all of it, unless several processes train together
    num_tokens: int  # real tokens of the whole batch, without padding
    # Targets of the whole batch. The loss of every part is divided by it, so parts add up to the mean over targets.
    num_targets: int
    num_rows_without_target: int = 0  # rows of the whole batch that have no target and teach nothing
    # Number of rows by which this process's share is smaller than the largest. All processes have to make equally many
    # parts.
    rows_short: int = 0


@dataclass
class State:
    """Progress of a training: with model and optimizer, all that resuming needs."""

    step: int = 0
    epoch: int = 0
    index: int = 0  # index of the next batch of `epoch`
    num_tokens: int = 0
    num_targets: int = 0
    num_empty_batches: int = 0  # batches without a target, for which no step was taken
    num_rows_without_target: int = 0
    window_loss_sum: float = 0.0
    window_right: float = 0.0  # NaN: the training does not count right answers
    window_targets: int = 0
    # Number of processes at the start, and after each restart that changed it.
    world_sizes: list[int] = field(default_factory=list)
    curve: list[CurvePoint] = field(default_factory=list)
    validations: list[ValidationPass] = field(default_factory=list)

    def note_world_size(self, world_size: int) -> None:
        """Record the number of processes that train from here on."""
        if self.world_sizes[-1:] != [world_size]:
            self.world_sizes.append(world_size)

    def count(self, batch: Batch[Any]) -> None:
        self.step += 1
        self.num_tokens += batch.num_tokens
        self.num_targets += batch.num_targets
        self.num_rows_without_target += batch.num_rows_without_target
        self.window_targets += batch.num_targets

    def add(self, loss_sum: float, num_right: float) -> None:
        """Add the results of some steps to the next point of the curve."""
        self.window_loss_sum += loss_sum
        self.window_right += num_right

    def close_window(self, learning_rate: float, gradient_norm: float) -> CurvePoint:
        """Add a point to the curve, over the steps since the previous point, and return it."""
        mean_loss, accuracy = (total / self.window_targets for total in (self.window_loss_sum, self.window_right))
        known = None if isnan(accuracy) else accuracy
        point = CurvePoint(self.step, mean_loss, learning_rate, gradient_norm, self.num_tokens, known)
        self.curve.append(point)
        self.window_loss_sum, self.window_right, self.window_targets = 0.0, 0.0, 0
        return point

    @property
    def best_validation(self) -> ValidationPass | None:
        """First validation pass with the lowest loss. Losses that are not finite are ignored."""
        return min((it for it in self.validations if isfinite(it.loss)), key=lambda it: it.loss, default=None)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "State":
        """Return a state from its `dataclasses.asdict` form."""
        curve = [CurvePoint(**point) for point in fields["curve"]]
        validations = [ValidationPass(**it) for it in fields["validations"]]
        return cls(**fields | {"curve": curve, "validations": validations})


class Callback:
    """Base of listeners: override the events you need."""

    def on_start(self, state: State) -> None:
        """Called before the first step of a new or resumed training: `state.step` says where it is."""

    def on_point(self, point: CurvePoint) -> None:
        """Called every `log_every_steps`, and at the last step."""

    def on_validation(self, validation: ValidationPass) -> None:
        """Called after each validation pass."""

    def on_end(self, state: State) -> None:
        """Called after the last step."""


@dataclass(frozen=True)
class Callbacks(Callback):
    """Several callbacks, called in order."""

    each: tuple[Callback, ...]

    def on_start(self, state: State) -> None:
        for callback in self.each:
            callback.on_start(state)

    def on_point(self, point: CurvePoint) -> None:
        for callback in self.each:
            callback.on_point(point)

    def on_validation(self, validation: ValidationPass) -> None:
        for callback in self.each:
            callback.on_validation(validation)

    def on_end(self, state: State) -> None:
        for callback in self.each:
            callback.on_end(state)


@dataclass
class PlateauWarning(Callback):
    """Warns once if the loss stays on the unigram plateau, where a model knows nothing but how frequent tokens are.

    A masked language model passes this plateau or is stuck on it for good: "my loss is stuck at 7".
    """

    unigram_loss: float  # cross-entropy of the training tokens under their own frequencies, nats
    first_step: int  # earlier steps (warm-up) do not count
    patience_points: int = 10
    _num_points: int = 0

    def on_point(self, point: CurvePoint) -> None:
        self.hear(point.step, point.loss)

    def hear(self, step: int, loss: float) -> None:
        """Take one measurement. `loss`: nats per target."""
        is_on_it = step >= self.first_step and abs(loss - self.unigram_loss) < _PLATEAU_NATS
        self._num_points = self._num_points + 1 if is_on_it else 0
        if self._num_points == self.patience_points:
            _LOG.warning(
                "step %d: the loss has stayed at %.2f; token frequencies alone give %.2f. Try a longer warm-up"
                " or half the learning rate, a pre-norm family (modernbert), fewer layers for such a short budget, or"
                " more steps",
                step,
                loss,
                self.unigram_loss,
            )
