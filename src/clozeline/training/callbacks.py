"""Listeners of a running training. A listener does not change the result."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from clozeline.training.curves import CurvePoint, Look
from clozeline.training.state import State

_LOG = logging.getLogger(__name__)


class Callback:
    """Base of listeners: override the events you need."""

    def on_start(self, state: State) -> None:
        """Called before the first step of a new or resumed training: `state.step` says where it is."""

    def on_point(self, point: CurvePoint) -> None:
        """Called every `log_every_steps`, and at the last step."""

    def on_look(self, look: Look) -> None:
        """Called after each validation pass."""

    def on_end(self, state: State) -> None:
        """Called after the last step."""


@dataclass(frozen=True)
class Callbacks(Callback):
    """Several callbacks, called in order."""

    each: tuple[Callback, ...]

    @classmethod
    def of(cls, callbacks: Iterable[Callback]) -> "Callbacks":
        return cls(tuple(callbacks))

    def on_start(self, state: State) -> None:
        for callback in self.each:
            callback.on_start(state)

    def on_point(self, point: CurvePoint) -> None:
        for callback in self.each:
            callback.on_point(point)

    def on_look(self, look: Look) -> None:
        for callback in self.each:
            callback.on_look(look)

    def on_end(self, state: State) -> None:
        for callback in self.each:
            callback.on_end(state)


class PlateauWarning(Callback):
    """Warns once if the loss stays on the unigram plateau, where a model knows nothing but how frequent tokens are.

    A masked language model passes this plateau or is stuck on it for good: "my loss is stuck at 7".
    """

    def __init__(self, unigram_loss: float, first_step: int, patience_points: int = 10) -> None:
        """`unigram_loss`: cross-entropy of the training tokens under their own frequencies, nats.
        `first_step`: earlier steps (warm-up) do not count.
        """
        self._unigram_loss = unigram_loss
        self._first_step = first_step
        self._patience_points = patience_points
        self._num_points = 0

    def on_point(self, point: CurvePoint) -> None:
        self.hear(point.step, point.loss)

    def hear(self, step: int, loss: float) -> None:
        """Take one measurement. `loss`: nats per target."""
        is_on_it = step >= self._first_step and abs(loss - self._unigram_loss) < _PLATEAU_NATS
        self._num_points = self._num_points + 1 if is_on_it else 0
        if self._num_points == self._patience_points:
            _LOG.warning(
                "step %d: the loss has stayed at %.2f; token frequencies alone give %.2f. Try a longer warm-up"
                " or half the learning rate, a pre-norm family (modernbert), fewer layers for such a short budget, or"
                " more steps",
                step,
                loss,
                self._unigram_loss,
            )


_PLATEAU_NATS = 0.15
