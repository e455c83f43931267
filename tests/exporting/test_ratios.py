"""Intervals count texts, not the answers in them, and are never of no width."""

import numpy as np
import pytest

from clozeline.exporting.ratios import per_text, ratio, share


def test_a_share_and_its_interval() -> None:
    text_A = np.arange(1000)
    measured = share(text_A % 10 != 0, text_A)
    assert measured.value == 0.9
    assert measured.num_items == 1000
    # One answer a text: the interval of a binomial share.
    assert measured.high - measured.value == pytest.approx(1.96 * np.sqrt(0.9 * 0.1 / 1000), rel=0.01)
    assert measured.value - measured.low == pytest.approx(measured.high - measured.value)


def test_answers_that_go_together_in_a_text_widen_the_interval() -> None:
    text_A = np.repeat(np.arange(100), 10)
    scattered = share(np.arange(1000) % 10 != 0, text_A)
    together = share(text_A % 10 != 0, text_A)
    assert scattered.value == together.value == 0.9
    assert together.high - together.low > 3 * (scattered.high - scattered.low)


def test_where_all_agree_the_interval_is_that_of_one_that_does_not() -> None:
    text_A = np.arange(500)
    measured = share(np.ones(500, dtype=bool), text_A)
    assert (measured.value, measured.high) == (1.0, 1.0)
    assert measured.low == pytest.approx(1 - 1.96 / 500, abs=1e-4)


def test_a_ratio_of_paired_counts_has_the_coverage_that_it_claims() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        right32_T = random.binomial(20, 0.4, size=200)
        lost_T, won_T = random.binomial(right32_T, 0.04), random.binomial(20 - right32_T, 0.02)
        measured = ratio(right32_T - lost_T + won_T, right32_T, num_items=4000)
        covered += measured.low <= (0.4 * 0.96 + 0.6 * 0.02) / 0.4 <= measured.high
    assert 0.92 < covered / 400 < 0.98


def test_a_ratio_to_nothing_speaks_for_nothing() -> None:
    assert ratio(np.array([0, 1]), np.array([0, 0]), num_items=2).value == 0


def test_answers_are_counted_by_text() -> None:
    holds = np.array([True, False, True, True])
    assert per_text(holds, np.array([0, 0, 2, 2])).tolist() == [1, 0, 2]
