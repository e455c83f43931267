"""What a training is made of in time: batches, points of its curve, looks at held-out text, how far it has come."""

from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Generic, TypeVar

from clozeline.artifacts.curves import CurvePoint, Look

Inputs = TypeVar("Inputs")


@dataclass(frozen=True)
class Batch(Generic[Inputs]):
    """What one optimizer step learns from, and its place in the endless sequence of batches."""

    epoch: int
    index: int
    inputs: Inputs
    """This process's part of it: all of it, unless several train together."""
    num_tokens: int
    """Real tokens of the whole batch, padding left out."""
    num_targets: int
    """Of the whole batch: the loss of every part is divided by it, so parts add up to the mean over targets."""
    num_rows_without_target: int = 0
    """Of the whole batch: rows that were read and taught nothing."""
    rows_short: int = 0
    """How many rows more the process with the most has: all of them must cut their rows into as many parts."""


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
    """Batches in which no token was a target: no step was taken."""
    num_rows_without_target: int = 0
    window_loss_sum: float = 0.0
    window_targets: int = 0
    curve: list[CurvePoint] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)

    def count(self, batch: Batch[Any]) -> None:
        self.step += 1
        self.num_tokens += batch.num_tokens
        self.num_targets += batch.num_targets
        self.num_rows_without_target += batch.num_rows_without_target
        self.window_targets += batch.num_targets

    def close_window(self, learning_rate: float, gradient_norm: float) -> CurvePoint:
        """A new point of the curve, over the steps since the one before."""
        mean_loss = self.window_loss_sum / self.window_targets
        point = CurvePoint(self.step, mean_loss, learning_rate, gradient_norm, self.num_tokens)
        self.curve.append(point)
        self.window_loss_sum, self.window_targets = 0.0, 0
        return point

    @property
    def best_look(self) -> Look | None:
        """The first of those with the lowest loss; one without a finite loss is none."""
        return min((look for look in self.looks if isfinite(look.loss)), key=lambda look: look.loss, default=None)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "State":
        """From what `dataclasses.asdict` made of one."""
        curve = [CurvePoint(**point) for point in fields["curve"]]
        return cls(**fields | {"curve": curve, "looks": [Look(**look) for look in fields["looks"]]})
