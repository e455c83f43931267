"""Lines of parallel coordinates pass each axis where their values are."""

from xml.etree import ElementTree

import pytest

from clozeline.reporting.parallel import Axis, Line, parallel

RATE = Axis("rate", 1e-4, 1e-2, is_log=True)
DECAY = Axis("decay", places=("linear", "cosine", "wsd"))


def test_numbers_and_names_have_their_places() -> None:
    low, middle, high = (RATE.at(value) for value in (1e-4, 1e-3, 1e-2))
    assert low is not None
    assert high is not None
    assert middle == pytest.approx((low + high) / 2, abs=0.1)
    assert [DECAY.at(name) for name in ("linear", "cosine", "wsd")] == pytest.approx([low, middle, high], abs=0.1)
    assert RATE.at(1.0) is None
    assert DECAY.at("other") is None


def test_a_line_leaves_out_axes_where_it_has_no_place_and_the_best_is_on_top() -> None:
    lines = [
        Line("trial 1", (1e-3, "wsd"), is_best=True),
        Line("trial 2", (5.0, "linear")),
        Line("trial 3", (1e-4, "cosine")),
    ]
    svg = ElementTree.fromstring(str(parallel("Trials <1>", [RATE, DECAY], lines))).find("svg")
    assert svg is not None
    groups = [(group.findtext("title"), len(group.findall("circle"))) for group in svg.findall("g")]
    assert groups == [("trial 2", 1), ("trial 3", 2), ("trial 1", 2)]
    assert svg.findtext("title") == "Trials <1>"
    assert "the best is trial 1" in str(svg.findtext("desc"))
