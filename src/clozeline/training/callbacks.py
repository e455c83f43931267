"""What can listen to a training while it runs. A listener changes nothing of the result."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from clozeline.artifacts.curves import CurvePoint, Look
from clozeline.training.state import State

_LOG = logging.getLogger(__name__)


class Callback:
    """Override what you want to hear of."""

    def on_start(self, state: State) -> None:
        """Before the first step, or where the training is taken up again: `state.step` says which."""

    def on_point(self, point: CurvePoint) -> None:
        """Every `log_every_steps`."""

    def on_look(self, look: Look) -> None:
        """After each look at held-out text."""

    def on_end(self, state: State) -> None:
        """After the last step."""


@dataclass(frozen=True)
class Callbacks(Callback):
    """Several in their order."""

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
    """Says so, once, when the loss stays where a model is that has learned how frequent tokens are and nothing else.

    A masked language model passes this plateau or is stuck on it for good: "my loss is stuck at 7".
    """

    def __init__(self, unigram_loss: float, first_step: int, patience_points: int = 10) -> None:
        """`unigram_loss`: cross-entropy of the training tokens under their own frequencies, nats.
        `first_step`: steps before it, of warm-up, do not count.
        """
        self._unigram_loss = unigram_loss
        self._first_step = first_step
        self._patience_points = patience_points
        self._num_points = 0

    def on_point(self, point: CurvePoint) -> None:
        self.hear(point.step, point.loss)

    def hear(self, step: int, loss: float) -> None:
        """`loss`: nats per target."""
        is_on_it = step >= self._first_step and abs(loss - self._unigram_loss) < _PLATEAU_NATS
        self._num_points = self._num_points + 1 if is_on_it else 0
        if self._num_points == self._patience_points:
            _LOG.warning(
                "step %d: the loss has stayed at %.2f, which is what knowing only how frequent tokens are gives (%.2f)."
                " Try a longer warm-up or half the learning rate, a pre-norm family (modernbert), fewer layers for so"
                " short a budget, or more steps",
                step,
                loss,
                self._unigram_loss,
            )


_PLATEAU_NATS = 0.15
