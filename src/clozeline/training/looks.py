"""Validation during training: is the model still improving, and when was it best?"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from clozeline.training.curves import Look, Quality
from clozeline.training.distribution import Processes
from clozeline.training.state import State


@dataclass
class Looks:
    """When to validate, how to measure, and when to stop."""

    every_steps: int
    patience: int | None
    """Number of validation passes without a lower loss after which training stops; None: never."""
    measure: Callable[[], Quality]
    """Measures the current model on held-out text."""
    best_weights: dict[str, Tensor] | None = None

    @property
    def keeps_best(self) -> bool:
        return self.patience is not None

    def is_due(self, step: int, is_last: bool) -> bool:
        return step % self.every_steps == 0 or is_last

    def take(self, model: nn.Module, state: State, processes: Processes) -> Look:
        """Measure the model. With `patience`, keep the weights if they are the best so far. Training is not affected.

        All processes take the figures that the first one measured, so that they stop at the same step and do not wait
        for each other forever.
        """
        model.eval()
        look = Look(state.step, *processes.of_the_first(self.measure()))
        model.train()
        state.looks.append(look)
        if self.keeps_best and state.best_look is look:
            self.best_weights = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
        return look

    def has_lost_patience(self, state: State) -> bool:
        best = state.best_look
        if self.patience is None or best is None:
            return False
        return len(state.looks) - 1 - state.looks.index(best) >= self.patience

    def restore_best(self, model: nn.Module) -> None:
        if self.best_weights is not None:
            model.load_state_dict(self.best_weights)
