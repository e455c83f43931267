"""Parallel coordinates: a line for each trial through its value on each axis.

The axes lie one below the other, so that a phone has room for long names and many axes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from clozeline.reporting.scales import Scale
from clozeline.reporting.templates import html

_WIDTH: Final = 360
_LEFT: Final = 14
_ROW_HEIGHT: Final = 62
_LABEL_HEIGHT: Final = 16
_BOTTOM: Final = 20


@dataclass(frozen=True)
class Axis:
    """One coordinate: numbers from `low` to `high`, or named places."""

    name: str
    low: float = 0.0
    high: float = 1.0
    is_log: bool = False
    places: tuple[str, ...] = ()
    """Names at 0, 1, 2, …; empty: numbers."""

    def at(self, value: float | str) -> float | None:
        """Return the x coordinate of a value; None: it is not on the axis."""
        if self.places:
            if str(value) not in self.places:
                return None
            return self._scale(0, len(self.places) - 1)(self.places.index(str(value)))
        number = float(value) if isinstance(value, int | float) else math.nan
        if not self.low <= number <= self.high:
            return None
        if self.is_log:
            return self._scale(math.log(self.low), math.log(self.high))(math.log(number))
        return self._scale(self.low, self.high)(number)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Coordinates and texts of the marks."""
        if self.places:
            return [(self.at(name) or 0.0, name) for name in self.places]
        return [(self.at(end) or 0.0, f"{end:.4g}") for end in (self.low, self.high)]

    @staticmethod
    def _scale(low: float, high: float) -> Scale:
        return Scale(low, high, _LEFT, _WIDTH - _LEFT)


@dataclass(frozen=True)
class Line:
    """One trial."""

    name: str
    values: tuple[float | str | None, ...]
    """A value for each axis; None: the line leaves the axis out."""
    is_best: bool = False


def parallel(title: str, axes: Sequence[Axis], lines: Sequence[Line], *, note: str = "") -> Markup:
    """Draw the lines, the best one on top."""
    down = [_LABEL_HEIGHT + 10 + place * _ROW_HEIGHT for place in range(len(axes))]
    drawn = []
    for line in sorted(lines, key=lambda one: one.is_best):
        pairs = zip(axes, line.values, down, strict=True)
        points = [(x, y) for axis, value, y in pairs if value is not None and (x := axis.at(value)) is not None]
        drawn.append((line, points, " ".join(f"{x:g},{y:g}" for x, y in points)))
    best = ", ".join(line.name for line in lines if line.is_best)
    return html(
        "parallel",
        title=title,
        description=f"{len(lines)} trials over {', '.join(axis.name for axis in axes)}; the best is {best or 'none'}",
        width=_WIDTH,
        height=down[-1] + _BOTTOM,
        left=_LEFT,
        axes=list(zip(axes, down, strict=True)),
        lines=drawn,
        note=note,
    )
