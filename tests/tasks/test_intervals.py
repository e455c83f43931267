"""Claim: intervals equal those of the reference implementation in their field."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap

from clozeline.records.finetune.statistics import bootstrap_interval, wilson_interval


@given(num_trials=st.integers(1, 5000), share=st.floats(0, 1))
@settings(deadline=None)
def test_the_interval_equals_scipys_wilson_interval(num_trials: int, share: float) -> None:
    num_hits = round(share * num_trials)
    expected = binomtest(num_hits, num_trials).proportion_ci(method="wilson")
    assert wilson_interval(num_hits, num_trials) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_interval_stays_between_0_and_1_at_the_ends() -> None:
    assert wilson_interval(0, 10)[0] == pytest.approx(0, abs=1e-12)
    assert 0.99 < wilson_interval(10, 10)[1] <= 1


def test_the_bootstrap_equals_that_of_scipy() -> None:
    values_N = np.random.default_rng(0).exponential(size=300)
    expected = bootstrap((values_N,), np.mean, method="percentile", rng=1).confidence_interval
    low, high = bootstrap_interval(lambda places: float(values_N[places].mean()), len(values_N))
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=0.02)
    assert low < values_N.mean() < high


def test_the_bootstrap_is_repeatable_and_ignores_nan() -> None:
    def figure(places: np.ndarray) -> float:
        return math.nan if places[0] % 2 else 0.5

    assert bootstrap_interval(figure, 10) == bootstrap_interval(figure, 10) == (0.5, 0.5)
