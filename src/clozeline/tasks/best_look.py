"""Training that validates the model at fixed steps, can resume between them, and keeps the best weights."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from clozeline.artifacts.finetune.plots import ScoredLook
from clozeline.training.callbacks import Callback
from clozeline.training.curves import CurvePoint
from clozeline.training.loop import Loop
from clozeline.training.state import State


@dataclass(frozen=True)
class Trained:
    """Validation scores and curve of one training run."""

    looks: list[ScoredLook]
    curve: list[CurvePoint]
    """Training curve, including the steps before the training was resumed."""
    learning_rate: float | None
    """None: nothing was trained."""
    score_at_rate: Mapping[float, float]
    """Learning rate → score of its first validation pass; NaN: diverged. Empty if one rate was tried."""


@dataclass
class Best:
    """The best validation pass so far, by `best_of`, and its weights."""

    look: ScoredLook
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Plan:
    """Steps of validation passes and checkpoints, counted in optimizer steps from the start."""

    steps_per_epoch: int
    num_epochs: int
    looks_per_epoch: int
    checkpoint_every_steps: int | None
    patience: int | None
    """Number of validation passes without a better score after which training stops; None: never."""

    @property
    def total_steps(self) -> int:
        return self.num_epochs * self.steps_per_epoch

    @property
    def look_steps(self) -> list[int]:
        """Steps with a validation pass: evenly spaced, with one at the end of each epoch."""
        num_looks = self.num_epochs * self.looks_per_epoch
        steps = {-(-place * self.total_steps // num_looks) for place in range(1, num_looks + 1)}
        return sorted(steps)

    @property
    def stops(self) -> list[int]:
        """Steps with a validation pass or a checkpoint."""
        every = self.checkpoint_every_steps or self.total_steps
        return sorted({*self.look_steps, *range(every, self.total_steps, every)})


@dataclass(frozen=True)
class BestLook:
    """A training loop that runs from stop to stop and ends with the weights of the best validation pass."""

    loop: Loop[Any]
    plan: Plan
    validation_score: Callable[[], float]
    learning_rate: float
    """Of the first group of weights, after warm-up."""
    score_at_rate: Mapping[float, float] = field(default_factory=dict)
    """As in `Trained`."""
    validates_start: bool = False
    """Whether the weights before the first step are validated too, and kept if no later ones are better."""

    def run(self, callback: Callback, on_look: Callable[[ScoredLook], None]) -> Trained:
        """Train from the newest checkpoint, or from the start. A resumed run ends with the same bytes.

        Raises:
            ArtifactError: a checkpoint belongs to another run.
            TrainingError: the loss or the gradient is not finite.
        """
        if self.plan.total_steps == 0:  # zero-shot tasks do not train
            only = ScoredLook(0, 0.0, self.validation_score())
            on_look(only)
            return Trained([only], [], None, {})
        return self._run(self.plan.stops, callback, on_look)

    def trial(self, callback: Callback) -> float:
        """Train up to the first validation pass, as `run` does, and return its score. `run` goes on from there."""
        first = self.plan.look_steps[0]
        trained = self._run([stop for stop in self.plan.stops if stop <= first], callback, lambda look: None)
        return next(look.validation_score for look in trained.looks if look.step == first)

    def _run(self, stops: Sequence[int], callback: Callback, on_look: Callable[[ScoredLook], None]) -> Trained:
        state, looks, best = self._resume()
        for look in looks:
            on_look(look)
        look_steps = set(self.plan.look_steps)
        for stop in [stop for stop in stops if stop > state.step]:
            if self._has_lost_patience(looks):
                break
            state = replace(self.loop, total_steps=stop).run(state, callback)
            if stop in look_steps:
                looks.append(ScoredLook(stop, stop / self.plan.steps_per_epoch, self.validation_score()))
                on_look(looks[-1])
                best = self._better_of(best, looks)
            self._save(state, looks, best)
        assert best is not None
        self.loop.model.load_state_dict(best.weights)
        return Trained(looks, state.curve, self.learning_rate, self.score_at_rate)

    def _better_of(self, best: Best | None, looks: Sequence[ScoredLook]) -> Best:
        if best is not None and best_of(looks) is not looks[-1]:
            return best
        weights = self.loop.model.state_dict()
        return Best(looks[-1], {name: weight.clone() for name, weight in weights.items()})

    def _has_lost_patience(self, looks: Sequence[ScoredLook]) -> bool:
        if self.plan.patience is None or not looks:
            return False
        return len(looks) - 1 - looks.index(_first_highest(looks)) >= self.plan.patience

    def _save(self, state: State, looks: list[ScoredLook], best: Best | None) -> None:
        records = [asdict(look) for look in looks]
        weights = None if best is None else best.weights
        self.loop.save(state, validation_looks=records, validation_best=weights)

    def _resume(self) -> tuple[State, list[ScoredLook], Best | None]:
        saved = self.loop.newest()
        if saved is None:
            looks = [ScoredLook(0, 0.0, self.validation_score())] if self.validates_start else []
            return State(), looks, self._better_of(None, looks) if looks else None
        looks = [ScoredLook(**look) for look in saved["validation_looks"]]
        weights = saved["validation_best"]
        best = None if weights is None else Best(best_of(looks), weights)
        return self.loop.restore(saved), looks, best


def best_of(looks: Sequence[ScoredLook]) -> ScoredLook:
    """Return the first validation pass with the highest score; NaN loses to any number. If the first passes
    have equal scores, only the last of them counts, because it trained longest.
    """
    num_alike = next((place for place, look in enumerate(looks) if not _is_alike(look, looks[0])), len(looks))
    return _first_highest(looks[num_alike - 1 :])


def are_alike(looks: Sequence[ScoredLook]) -> bool:
    """Return whether there are several validation passes, all with the same score."""
    return len(looks) > 1 and all(_is_alike(look, looks[0]) for look in looks)


def _is_alike(one: ScoredLook, other: ScoredLook) -> bool:
    return not _is_better(one, other) and not _is_better(other, one)


def _first_highest(looks: Sequence[ScoredLook]) -> ScoredLook:
    best = looks[0]
    for look in looks[1:]:
        best = look if _is_better(look, best) else best
    return best


def _is_better(look: ScoredLook, best: ScoredLook) -> bool:
    return look.validation_score > best.validation_score or (
        math.isnan(best.validation_score) and not math.isnan(look.validation_score)
    )
