"""Intervals count texts, not the answers in them, and always have a positive width."""

import numpy as np
import pytest

from clozeline.exporting.exams import Counts, per_text, ratio, share
from clozeline.exporting.proof import ratio_of_figures


def test_a_share_has_the_interval_of_a_binomial() -> None:
    text_A = np.arange(1000)
    measured = share(text_A % 10 != 0, text_A)
    assert measured.value == 0.9
    assert measured.num_items == 1000
    # One answer a text: the interval of a binomial share.
    assert measured.high - measured.value == pytest.approx(1.96 * np.sqrt(0.9 * 0.1 / 1000), rel=0.01)
    assert measured.value - measured.low == pytest.approx(measured.high - measured.value)


def test_correlated_answers_within_a_text_widen_the_interval() -> None:
    text_A = np.repeat(np.arange(100), 10)
    scattered = share(np.arange(1000) % 10 != 0, text_A)
    together = share(text_A % 10 != 0, text_A)
    assert scattered.value == together.value == 0.9
    assert together.high - together.low > 3 * (scattered.high - scattered.low)
    assert (together.num_items, together.num_texts) == (1000, 100)


def test_texts_without_answers_are_not_counted() -> None:
    assert share(np.array([True, False]), np.array([0, 7])).num_texts == 2
    ours, theirs = f1_counts(*np.array([[1, 0, 0], [1, 1, 0], [1, 0, 0]])), f1_counts(*np.array([[1, 0, 0]] * 3))
    assert ratio_of_figures(ours, theirs).num_texts == 2


def test_full_agreement_gets_the_interval_of_a_single_disagreement() -> None:
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


def test_a_ratio_with_denominator_0_is_0() -> None:
    assert ratio(np.array([0, 1]), np.array([0, 0]), num_items=2).value == 0


def test_answers_are_counted_by_text() -> None:
    holds = np.array([True, False, True, True])
    assert per_text(holds, np.array([0, 0, 2, 2])).tolist() == [1, 0, 2]


def f1_counts(right_T: np.ndarray, said_T: np.ndarray, true_T: np.ndarray) -> Counts:
    return Counts(2 * right_T, said_T + true_T)


def test_the_interval_of_a_ratio_of_two_f1_equals_that_of_the_bootstrap() -> None:
    random = np.random.default_rng(0)
    true_T = random.integers(0, 5, size=400)
    theirs_T, their_said_T = random.binomial(true_T, 0.8), true_T + random.integers(0, 2, size=400)
    lost_T = random.binomial(theirs_T, 0.1)
    ours, theirs = (
        f1_counts(theirs_T - lost_T, their_said_T - lost_T // 2, true_T),
        f1_counts(theirs_T, their_said_T, true_T),
    )
    measured = ratio_of_figures(ours, theirs)
    assert measured.value == pytest.approx(ours.value / theirs.value)

    def of(places: np.ndarray) -> float:
        drawn = [Counts(one.part_T[places], one.whole_T[places]) for one in (ours, theirs)]
        return drawn[0].value / drawn[1].value

    drawn = [of(random.integers(400, size=400)) for _ in range(2000)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert measured.low == pytest.approx(low, abs=0.1 * (high - low))
    assert measured.high == pytest.approx(high, abs=0.1 * (high - low))


def test_a_ratio_with_equal_totals_is_the_plain_ratio_and_with_divisor_zero_it_is_0() -> None:
    ones = np.ones(6)
    ours, theirs = Counts(np.array([1, 0, 1, 1, 0, 1]), ones), Counts(np.array([1, 1, 1, 1, 0, 1]), ones)
    assert ratio_of_figures(ours, theirs) == ratio(ours.part_T, theirs.part_T, 6)
    nothing = Counts(np.zeros(6), ones + 1)
    assert ratio_of_figures(ours, nothing).high == 0
    assert ratio_of_figures(nothing, ours).value == 0
    assert Counts(np.zeros(2), np.zeros(2)).value == 0
