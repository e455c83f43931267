"""Charts as inline SVG. They use the page's light and dark colours and its font.

Each has a title and a description for screen readers. A chart is drawn for the width of a phone and scales up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from clozeline.reporting.scales import Scale, thinned
from clozeline.reporting.templates import html

_WIDTH, _HEIGHT = 360, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 12, 42
_ROW_HEIGHT = 30

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    points: Points
    has_dots: bool = False
    """Whether to mark each point; for series of a few points that were measured one by one."""


def lines(
    title: str,
    series: Sequence[Series],
    *,
    x: str,
    y: str,
    note: str = "",
    limits: tuple[float, float] | None = None,
    has_diagonal: bool = False,
) -> Markup:
    """Draw lines over a common x axis; `limits` is the range of y (default: that of the points)."""
    every_x, every_y = ([point[axis] for one in series for point in one.points] for axis in (0, 1))
    low, high = limits or _with_margin(min(every_y), max(every_y))
    x_low, x_high = limits if has_diagonal and limits else (min(every_x), max(every_x))
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
        series=[(one, _polyline(one, across, up)) for one in series],
        has_diagonal=has_diagonal,
        note=note,
    )


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart."""

    label: str
    value: float
    text: str
    """The value in words, shown after the bar."""
    low: float | None = None
    high: float | None = None
    """`low` and `high` are the ends of an interval for the value."""


def bars(title: str, rows: Sequence[Bar], *, note: str = "", most: float | None = None) -> Markup:
    """Draw a horizontal bar from zero for each row; `most` is the end of the scale (default: the largest value)."""
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


def _polyline(series: Series, across: Scale, up: Scale) -> str:
    return " ".join(f"{across(x):g},{up(y):g}" for x, y in thinned(list(series.points)))


def _with_margin(low: float, high: float) -> tuple[float, float]:
    margin = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    start = 0.0 if 0 <= low < 0.25 * high else low - margin
    return start, high + margin


def _from_to(points: Points) -> str:
    (first_x, first), (last_x, last) = points[0], points[-1]
    return f"{first:.4g} at {first_x:g}, {last:.4g} at {last_x:g}"
