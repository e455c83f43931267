"""Charts contain every point that matters, and describe in words what they show."""

from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from clozeline.reporting.charts import Bar, Scale, Series, bars, lines, thinned


def svg_of(figure: Markup) -> ElementTree.Element:
    found = ElementTree.fromstring(str(figure)).find("svg")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 4500, [0, 1000, 2000, 3000, 4000]),
        (2.9, 8.8, [4, 6, 8]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round_numbers_within_the_range(low: float, high: float, ticks: list[float]) -> None:
    assert Scale(low, high, 0, 100).ticks() == pytest.approx(ticks)


def test_a_long_curve_is_thinned_but_keeps_its_spikes() -> None:
    points = [(float(step), 1.0) for step in range(10_000)]
    points[4321] = (4321.0, 99.0)
    points[77] = (77.0, -5.0)
    kept = thinned(points)
    assert len(kept) <= 400
    assert {points[4321], points[77], points[0]} <= set(kept)
    assert kept == sorted(kept)


def test_a_chart_says_in_words_what_it_shows() -> None:
    figure = lines("Loss <b>", [Series("training", [(25, 8.5), (100, 3.25)])], x="step", y="nats")
    svg = svg_of(figure)
    assert svg.get("role") == "img"
    assert svg.findtext("title") == "Loss <b>"
    assert svg.findtext("desc") == "nats by step. training: 8.5 at 25, 3.25 at 100"


def test_points_lie_where_their_values_are() -> None:
    svg = svg_of(lines("a", [Series("one", [(0, 0), (5, 1), (10, 0.5)])], x="x", y="y", are_shares=True))
    line = svg.find("polyline")
    assert line is not None
    (x0, y0), (x1, y1), (x2, y2) = (map(float, pair.split(",")) for pair in line.get("points", "").split())
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y1 < y2 < y0  # in SVG, y grows downwards
    assert y0 - y2 == pytest.approx((y0 - y1) / 2)


def test_a_curve_of_one_point_or_of_equal_points_is_drawn() -> None:
    assert svg_of(lines("a", [Series("one", [(5, 2.0)])], x="x", y="y")).find("circle") is not None
    assert svg_of(lines("a", [Series("one", [(5, 0.0), (6, 0.0)])], x="x", y="y")).find("polyline") is not None


def test_a_bar_is_as_long_as_its_value_and_has_its_interval() -> None:
    rows = [Bar("half", 0.5, "50 %", 0.4, 0.6), Bar("whole", 1.0, "100 %")]
    svg = svg_of(bars("shares", rows, most=1.0))
    widths = [float(bar.get("width", 0)) for bar in svg.iter("rect") if bar.get("class") == "bar"]
    assert widths[0] == pytest.approx(widths[1] / 2)
    (whisker,) = (line for line in svg.iter("line") if line.get("class") == "whisker")
    assert float(whisker.get("x2", 0)) - float(whisker.get("x1", 0)) == pytest.approx(0.2 * widths[1], abs=0.2)
    assert svg.findtext("desc") == "half: 50 %; whole: 100 %"
