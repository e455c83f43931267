"""Claim: two orders are fused by the ranks that each candidate has in them."""

import numpy as np
import pytest

from clozeline.search import fusion
from clozeline.search.fusion import fused


def test_points_are_those_of_every_rank_counted_one_by_one() -> None:
    draw = np.random.default_rng(0)
    one, other = draw.normal(size=(2, 5, 40)).astype(np.float32)
    expected = np.zeros((5, 40))
    for order in (one, other):
        for query in range(5):
            for rank, place in enumerate(sorted(range(40), key=lambda place: -order[query, place]), start=1):
                expected[query, place] += 1 / (60 + rank)
    assert fused(one, other) == pytest.approx(expected)


def test_scales_do_not_matter_and_what_is_not_found_has_no_points() -> None:
    one = np.array([[0.3, 0.2, 0.1]], dtype=np.float32)
    other = np.array([[-np.inf, 500.0, -np.inf]], dtype=np.float32)
    assert fused(one, other) == pytest.approx(np.array([[1 / 61, 1 / 62 + 1 / 61, 1 / 63]]))


def test_of_equal_ones_the_first_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "DEPTH", 3)
    (score_D,) = fused(np.array([[1.0, 2.0, 2.0, 2.0, 0.5]], dtype=np.float32))
    assert score_D == pytest.approx([0, 1 / 61, 1 / 62, 1 / 63, 0])
