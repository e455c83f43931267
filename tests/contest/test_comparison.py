"""Claim: figures from the same seeds are compared by the paired t-test."""

import numpy as np
import pytest
from scipy import stats

from clozeline.lab.contest import PairedTest


def test_seeds_are_compared_as_scipy_compares_pairs() -> None:
    random = np.random.default_rng(3)
    first_S, second_S = random.normal(size=5), random.normal(0.5, size=5)
    found, right = PairedTest.over_seeds(first_S, second_S), stats.ttest_rel(first_S, second_S)
    interval = right.confidence_interval(0.95)
    assert found.difference == pytest.approx((first_S - second_S).mean())
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value == pytest.approx(right.pvalue)


@pytest.mark.parametrize(("difference", "p_value"), [(0.0, 1.0), (0.5, 0.0)])
def test_a_difference_without_any_spread_is_none_or_no_chance(difference: float, p_value: float) -> None:
    first_S = np.array([1.0, 2.0, 3.0])
    found = PairedTest.over_seeds(first_S + difference, first_S)
    assert (found.difference, found.low, found.high, found.p_value) == (difference, difference, difference, p_value)
