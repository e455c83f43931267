"""Training in epochs of which the best is kept: judged after each one, resumed between them."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from clozeline.training.callbacks import Callback
from clozeline.training.loop import Loop
from clozeline.training.state import State


@dataclass(frozen=True)
class EpochPoint:
    """What is known after an epoch; epochs are counted from 1."""

    epoch: int
    step: int
    validation_score: float


@dataclass
class Best:
    """The weights of the epoch with the highest score; of equal ones the first."""

    epoch: int
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class BestEpoch:
    """`num_epochs` runs of a loop, each of `steps_per_epoch`, that end with the weights of the best epoch."""

    loop: Loop[Any]
    steps_per_epoch: int
    num_epochs: int
    validation_score: Callable[[], float]

    def run(self, callback: Callback, on_epoch: Callable[[EpochPoint], None]) -> list[EpochPoint]:
        """Train from the newest checkpoint, or from nothing; a run killed and resumed ends with the same bytes.

        Raises:
            ArtifactError: a checkpoint belongs to another run.
            TrainingError: the loss or the gradient is not finite.
        """
        state, points, best = self._resume()
        for point in points:
            on_epoch(point)
        while len(points) < self.num_epochs:
            epoch = len(points) + 1
            state = replace(self.loop, total_steps=epoch * self.steps_per_epoch).run(state, callback)
            points.append(EpochPoint(epoch, state.step, self.validation_score()))
            on_epoch(points[-1])
            if best is None or points[-1].validation_score > points[best.epoch - 1].validation_score:
                weights = self.loop.model.state_dict()
                best = Best(epoch, {name: weight.clone() for name, weight in weights.items()})
            self._save(state, points, best)
        assert best is not None
        self.loop.model.load_state_dict(best.weights)
        return points

    def _save(self, state: State, points: list[EpochPoint], best: Best) -> None:
        epochs = [asdict(point) for point in points]
        self.loop.save(state, points=epochs, best_epoch=best.epoch, best_weights=best.weights)

    def _resume(self) -> tuple[State, list[EpochPoint], Best | None]:
        saved = self.loop.checkpoints.load_newest()
        if saved is None:
            return State(), [], None
        points = [EpochPoint(**point) for point in saved["points"]]
        return self.loop.restore(saved), points, Best(saved["best_epoch"], saved["best_weights"])
