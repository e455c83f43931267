"""A small grid of learning rates: each trains up to its first validation pass, and the best one goes on."""

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clozeline.errors import TrainingError
from clozeline.progress import ProgressBar
from clozeline.storage.atomic import remove_folder
from clozeline.tasks.best_look import BestLook
from clozeline.training.callbacks import Callback
from clozeline.training.curves import CurvePoint
from clozeline.training.loop import Loop

_LOG = logging.getLogger(__name__)
CLEARLY = 0.05
"""Lead in the validation score that is hardly chance: the standard error of a share is 0.035 with 200 items."""


@dataclass(frozen=True)
class BestRate:
    """Trainings of one model that differ in their learning rate alone."""

    trainings: Sequence[BestLook]
    folder: Path
    """Folder of their checkpoints, in that of all seeds."""

    @property
    def loop(self) -> Loop[Any]:
        return self.trainings[0].loop

    def chosen(self) -> BestLook:
        """Return the training with the best first validation pass, which `run` continues from there.

        Each is the same as if it were the only one, and none of its steps is done twice. The first is chosen unless
        another one is better by more than `CLEARLY`. A rate at which the training diverges loses, unless it is the
        first.

        Raises:
            TrainingError: the training at the first rate diverges.
        """
        if len(self.trainings) == 1 or not self.loop.total_steps:
            return self.trainings[0]
        scaler = self.loop.hardware.precision.scaler
        start = {name: weight.clone() for name, weight in self.loop.model.state_dict().items()}
        scale = scaler.state_dict()
        scores: dict[float, float] = {}
        for training in self.trainings:
            self.loop.model.load_state_dict(start)
            scaler.load_state_dict(scale)
            scores[training.learning_rate] = self._score(training)
        self.loop.model.load_state_dict(start)
        best = max(self.trainings, key=lambda training: _rank(scores[training.learning_rate]))
        if _rank(scores[best.learning_rate]) - _rank(scores[self.trainings[0].learning_rate]) <= CLEARLY:
            best = self.trainings[0]
        _LOG.info("learning rate %s is kept: %s", best.learning_rate, _in_words(scores))
        return replace(best, score_at_rate=scores)

    def forget(self) -> None:
        """Remove the checkpoints, once the result is saved."""
        remove_folder(self.folder)
        with suppress(OSError):  # other seeds are not done
            self.folder.parent.rmdir()

    def _score(self, training: BestLook) -> float:
        is_first = training is self.trainings[0]
        name = f"learning rate {training.learning_rate}"
        shown = self.loop.hardware.processes.is_first
        try:
            with ProgressBar(name, training.plan.look_steps[0]) as bar:
                return training.trial(_Shown(bar) if shown else Callback())
        except TrainingError as error:
            if is_first:
                raise
            _LOG.warning("%s is not used: %s", name, error.problem)
            return math.nan
        finally:
            training.loop.optimizer.zero_grad()  # one that diverges leaves gradients
            training.loop.optimizer.state.clear()  # `run` reads it from the checkpoint


class _Shown(Callback):
    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar

    def on_point(self, point: CurvePoint) -> None:
        self._bar.advance(point.step - self._bar.done, note=f"loss {point.loss:.3f}")


def _rank(score: float) -> float:
    return -math.inf if math.isnan(score) else score


def _in_words(scores: Mapping[float, float]) -> str:
    return ", ".join(f"{score:.4f} at {rate}" for rate, score in scores.items()) + " after the first validation pass"
