"""Mapping from values to coordinates of a chart."""

import math
from dataclasses import dataclass
from itertools import takewhile

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MOST_POINTS = 400


@dataclass(frozen=True)
class Scale:
    """Maps values in `low` … `high` linearly to coordinates `start` … `end`; `end` may be less than `start`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        width = self.high - self.low or 1.0
        return round(self.start + (value - self.low) / width * (self.end - self.start), 1)

    def ticks(self, most: int = 5) -> list[float]:
        """Return evenly spaced round values in the range, at most `most` + 1."""
        step = _round_step((self.high - self.low or 1.0) / most)
        first = math.ceil(self.low / step - 1e-9)
        numbers = (round(place * step, 12) for place in range(first, first + 2 * most))
        return list(takewhile(lambda value: value <= self.high + 1e-9 * step, numbers))


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))


def thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most 400 points: the lowest and highest of each group of neighbours, so that no spike is lost."""
    if len(points) <= _MOST_POINTS:
        return points
    size = math.ceil(2 * len(points) / _MOST_POINTS)
    kept = []
    for start in range(0, len(points), size):
        near = points[start : start + size]
        lowest, highest = (pick(near, key=lambda point: point[1]) for pick in (min, max))
        kept += sorted({lowest, highest})
    return kept
