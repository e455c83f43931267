"""Charts as SVG in the page: they take its colours, light and dark, and its type.

Each has a title and a description for those who cannot see it. A chart is drawn for the width of a phone, and grows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from clozeline.reporting.elements import element, joined
from clozeline.reporting.numbers import short
from clozeline.reporting.scales import Scale, thinned

_WIDTH, _HEIGHT = 360, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 12, 42
_ROW_HEIGHT = 30
_LABEL_CHARACTERS = 36

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    points: Points
    has_dots: bool = False
    """Each point was measured for itself, and there are few."""


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
    """Lines over a common x; `limits` are those of y, otherwise those of the points."""
    every_x, every_y = ([point[axis] for one in series for point in one.points] for axis in (0, 1))
    low, high = limits or _with_margin(min(every_y), max(every_y))
    x_low, x_high = limits if has_diagonal and limits else (min(every_x), max(every_x))
    across = Scale(x_low, x_high, _LEFT, _WIDTH - _RIGHT)
    up = Scale(low, high, _HEIGHT - _BOTTOM, _TOP)
    drawn = [_line(place, one, across, up) for place, one in enumerate(series)]
    diagonal = _segment("diagonal", across(x_low), up(x_low), across(x_high), up(x_high)) if has_diagonal else None
    legend = [
        element("span", element("i", "", class_=f"key s{place % 4}"), one.name) for place, one in enumerate(series)
    ]
    told = "; ".join(f"{one.name}: {_from_to(one.points)}" for one in series)
    return _figure(title, f"{y} by {x}. {told}", _axes(across, up, x), diagonal, *drawn, y=y, legend=legend, note=note)


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart."""

    label: str
    value: float
    told: str
    """The value in words, behind the bar."""
    low: float | None = None
    high: float | None = None
    """Ends of an interval for the value."""
    marks: tuple[tuple[str, float], ...] = ()
    """Others to compare with, by name."""


def bars(title: str, rows: Sequence[Bar], *, note: str = "", most: float | None = None) -> Markup:
    """A horizontal bar for each row, from zero; `most` is where the scale ends, otherwise at the largest value."""
    reach = [value for row in rows for value in (row.value, row.high or 0, *(mark for _, mark in row.marks))]
    across = Scale(0, most or max(reach) or 1, 4, _WIDTH - 8)
    height = _ROW_HEIGHT * len(rows) + 4
    drawn = [_bar(row, _ROW_HEIGHT * place, across) for place, row in enumerate(rows)]
    names = list(dict.fromkeys(name for row in rows for name, _ in row.marks))
    legend = [element("span", element("i", "", class_=f"mark m{place % 3}"), name) for place, name in enumerate(names)]
    told = "; ".join(f"{row.label}: {row.told}" for row in rows)
    return _figure(title, told, *drawn, legend=legend, note=note, height=height)


def _bar(row: Bar, top: float, across: Scale) -> Markup:
    words = element("text", _cut(row.label), x=4, y=top + 13, class_="label")
    told = element("text", row.told, x=_WIDTH - 8, y=top + 13, class_="value", text_anchor="end")
    middle = top + 22
    whisker = None
    if row.low is not None and row.high is not None:
        ends = (across(row.low), middle, across(row.high), middle)
        whisker = _segment("whisker-edge", *ends) + _segment("whisker", *ends)
    marks = [
        element(
            "rect",
            element("title", f"{name}"),
            x=across(value) - 1.5,
            y=top + 16,
            width=3,
            height=12,
            class_=f"m{place % 3}",
        )
        for place, (name, value) in enumerate(row.marks)
    ]
    return element(
        "g",
        element("title", f"{row.label}: {row.told}"),
        words,
        told,
        element("rect", x=4, y=top + 18, width=_WIDTH - 12, height=8, class_="track"),
        element("rect", x=4, y=top + 18, width=max(across(row.value) - 4, 0), height=8, class_="bar"),
        whisker,
        *marks,
    )


def _figure(
    title: str,
    description: str,
    *drawn: Markup | None,
    y: str = "",
    legend: Sequence[Markup] = (),
    note: str = "",
    height: float = _HEIGHT,
) -> Markup:
    picture = element(
        "svg",
        element("title", title),
        element("desc", description),
        *drawn,
        viewBox=f"0 0 {_WIDTH} {height:g}",
        role="img",
    )
    above = [element("strong", title), element("span", y, class_="unit") if y else None]
    return element(
        "figure",
        element("figcaption", *above),
        element("p", *legend, class_="legend") if legend else None,
        picture,
        element("p", note, class_="note") if note else None,
    )


def _axes(across: Scale, up: Scale, x: str) -> Markup:
    bottom = up.start
    rows = [
        _segment("grid", across.start, up(value), across.end, up(value))
        + element("text", short(value), x=across.start - 6, y=up(value) + 4, text_anchor="end")
        for value in up.ticks()
    ]
    columns = [
        _segment("tick", across(value), bottom, across(value), bottom + 4)
        + element("text", short(value), x=across(value), y=bottom + 17, text_anchor="middle")
        for value in across.ticks()
    ]
    name = element("text", x, x=across.end, y=_HEIGHT - 6, text_anchor="end", class_="axis")
    return joined([*rows, _segment("base", across.start, bottom, across.end, bottom), *columns, name])


def _line(place: int, series: Series, across: Scale, up: Scale) -> Markup:
    points = [(across(x), up(y)) for x, y in thinned(list(series.points))]
    path = element("polyline", points=" ".join(f"{x:g},{y:g}" for x, y in points), class_=f"s{place % 4}")
    if not series.has_dots and len(points) > 1:
        return path
    dots = (
        element(
            "circle", element("title", f"{series.name}: {y:.4g} at {x:g}"), cx=cx, cy=cy, r=3, class_=f"s{place % 4}"
        )
        for (x, y), (cx, cy) in zip(series.points, points, strict=False)
    )
    return path + joined(dots)


def _segment(kind: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def _with_margin(low: float, high: float) -> tuple[float, float]:
    margin = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    start = 0.0 if 0 <= low < 0.25 * high else low - margin
    return start, high + margin


def _from_to(points: Points) -> str:
    (first_x, first), (last_x, last) = points[0], points[-1]
    return f"{first:.4g} at {first_x:g}, {last:.4g} at {last_x:g}"


def _cut(label: str) -> str:
    return label if len(label) <= _LABEL_CHARACTERS else f"{label[: _LABEL_CHARACTERS - 1]}…"
