"""Charts as inline SVG, which use the page's light and dark colours and its font.

Each has a title and a description for screen readers. A chart is drawn for the width of a phone and scales up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from markupsafe import Markup

from clozeline.reporting.run import html

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MOST_POINTS = 400
_ROW_HEIGHT = 30
Points = Sequence[tuple[float, float]]
_WIDTH, _HEIGHT = 360, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 12, 42


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
        least = (self.high - self.low or 1.0) / most
        power = 10.0 ** math.floor(math.log10(least))
        step = next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        numbers = (round(place * step, 12) for place in range(first, first + 2 * most))
        return list(takewhile(lambda value: value <= self.high + 1e-9 * step, numbers))


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


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    points: Points
    has_dots: bool = False  # whether to mark each point; for series of a few points that were measured one by one


def lines(
    title: str, series: Sequence[Series], *, x: str, y: str, note: str = "", are_shares: bool = False
) -> Markup | None:
    """Draw lines over a common x axis; None without points. `are_shares`: both axes go from 0 to 1, with a diagonal."""
    series = [one for one in series if one.points]
    if not series:
        return None
    every_x, every_y = ([point[axis] for one in series for point in one.points] for axis in (0, 1))
    low, high = (0.0, 1.0) if are_shares else _with_margin(min(every_y), max(every_y))
    x_low, x_high = (0.0, 1.0) if are_shares else (min(every_x), max(every_x))
    across = Scale(x_low, x_high, _LEFT, _WIDTH - _RIGHT)
    up = Scale(low, high, _HEIGHT - _BOTTOM, _TOP)
    summary = "; ".join(f"{one.name}: {_from_to(one.points)}" for one in series)
    return html(
        "lines",
        title=title,
        description=f"{y} by {x}. {summary}",
        width=_WIDTH,
        height=_HEIGHT,
        x=x,
        y=y,
        across=across,
        up=up,
        series=[(one, " ".join(f"{across(x):g},{up(y):g}" for x, y in thinned(list(one.points)))) for one in series],
        has_diagonal=are_shares,
        note=note,
    )


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart."""

    label: str
    value: float
    text: str  # the value in words, shown after the bar
    low: float | None = None
    high: float | None = None  # `low` and `high` are the ends of an interval for the value


def bars(title: str, rows: Sequence[Bar], *, note: str = "", most: float | None = None) -> Markup | None:
    """Draw a horizontal bar from zero for each row; None without rows. `most`: end of the scale; by default the largest
    value.
    """
    if not rows:
        return None
    reach = [value for row in rows for value in (row.value, row.high or 0)]
    across = Scale(0, most or max(reach) or 1, 4, _WIDTH - 8)
    return html(
        "bars",
        title=title,
        description="; ".join(f"{row.label}: {row.text}" for row in rows),
        width=_WIDTH,
        height=_ROW_HEIGHT * len(rows) + 4,
        across=across,
        row_height=_ROW_HEIGHT,
        rows=rows,
        note=note,
    )


def _with_margin(low: float, high: float) -> tuple[float, float]:
    margin = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    start = 0.0 if 0 <= low < 0.25 * high else low - margin
    return start, high + margin


def _from_to(points: Points) -> str:
    (first_x, first), (last_x, last) = points[0], points[-1]
    return f"{first:.4g} at {first_x:g}, {last:.4g} at {last_x:g}"
