"""Is a task's figure above what needs no encoder? Asked where it is made, and wherever it is told."""

import math
from typing import Protocol


class Compared(Protocol):
    """A figure, of which higher is better, with those of a simple method and of a trivial answer beside it."""

    @property
    def value(self) -> float: ...
    @property
    def baseline(self) -> str: ...
    @property
    def baseline_value(self) -> float: ...
    @property
    def trivial(self) -> str: ...
    @property
    def trivial_value(self) -> float: ...


def unbeaten(figure: Compared) -> tuple[tuple[str, float], ...]:
    """Names and values of those that it is no better than; a figure that is not a number is better than none."""
    beside = ((figure.baseline, figure.baseline_value), (figure.trivial, figure.trivial_value))
    return tuple((name, value) for name, value in beside if not figure.value > value and not math.isnan(value))
