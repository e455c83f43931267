"""Charts contain every point that matters, and describe in words what they show; the confusion matrix loses no item."""

import re
from collections import Counter
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from clozeline.reporting.charts import Bar, Scale, Series, bars, lines, thinned
from clozeline.reporting.tasks import MOST_CLASSES, matrix


def svg_of(figure: Markup) -> ElementTree.Element:
    found = ElementTree.fromstring(str(figure)).find("svg")
    assert found is not None
    return found


def test_ticks_are_round_numbers_within_the_range() -> None:
    assert Scale(0, 4500, 0, 100).ticks() == [0, 1000, 2000, 3000, 4000]
    assert Scale(-1, 1, 0, 100).ticks() == pytest.approx([-1, -0.5, 0, 0.5, 1])
    assert Scale(5, 5, 0, 100).ticks() == [5]


def test_a_long_curve_is_thinned_but_keeps_its_spikes() -> None:
    points = [(float(step), 1.0) for step in range(10_000)]
    points[4321] = (4321.0, 99.0)
    points[77] = (77.0, -5.0)
    kept = thinned(points)
    assert len(kept) <= 400
    assert {points[4321], points[77], points[0]} <= set(kept)
    assert kept == sorted(kept)


def test_points_lie_where_their_values_are() -> None:
    svg = svg_of(lines("a <b>", [Series("one", [(0, 0), (5, 1), (10, 0.5)])], x="x", y="y", are_shares=True))
    assert (svg.findtext("title"), svg.findtext("desc")) == ("a <b>", "y by x. one: 0 at 0, 0.5 at 10")
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


def cells(html: str) -> dict[tuple[str, str], int]:
    """Return the counts of the matrix by (actual, predicted)."""
    (table,) = re.findall(r'<table class="confusion">.*?</table>', html, re.DOTALL)
    root = ElementTree.fromstring(table)
    columns = ["".join(head.itertext()) for head in root.findall("thead/tr/th")]
    told = {}
    for row in root.findall("tbody/tr"):
        actual = row.findtext("th", "")
        for said, cell in zip(columns, row.findall("td"), strict=True):
            if cell.text != "·":
                told[actual, said] = int((cell.text or "").replace(",", ""))
    return told


def test_the_matrix_counts_every_pair_and_groups_the_rarest_of_many_classes() -> None:
    pairs = [(f"class {place % 20}", f"class {place * place % 20}") for place in range(500)]
    assert cells(matrix("task", pairs)) == dict(Counter(pairs))
    pairs = [(f"class {place % 60:02}", f"class {(place if place % 3 else place + 1) % 60:02}") for place in range(900)]
    pairs += [("frequent", "frequent")] * 100
    told = cells(matrix("task", pairs))
    assert len({actual for actual, _ in told}) == MOST_CLASSES
    assert sum(told.values()) == len(pairs)
    assert told["frequent", "frequent"] == 100


def test_the_most_frequent_mistake_is_named_first_with_its_share() -> None:
    pairs = [("a", "a")] * 6 + [("a", "b")] * 2 + [("b", "a")] * 3 + [("b", "b")]
    first, second = re.findall(
        r"<tr><th scope=\"row\">(.)</th><td>(.)</td><td.*?>(\d+)</td><td.*?>(.+?)</td>", matrix("task", pairs)
    )
    assert first[:3] == ("b", "a", "3")
    assert first[3].startswith("75.0")
    assert second[:3] == ("a", "b", "2")
    assert "mistakes" not in matrix("task", [("a", "a")])
