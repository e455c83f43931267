"""Claim: intervals equal those of the reference implementation in their field; a figure has to beat its baselines."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap

from clozeline.records.finetune import statistics
from clozeline.records.finetune.statistics import bootstrap_interval, ratio_intervals, sign_flip_p_value
from clozeline.records.finetune.task_metrics import Headline


@given(num_trials=st.integers(1, 5000), share=st.floats(0, 1))
@settings(deadline=None)
def test_the_interval_equals_scipys_wilson_interval(num_trials: int, share: float) -> None:
    num_hits = round(share * num_trials)
    expected = binomtest(num_hits, num_trials).proportion_ci(method="wilson")
    found = statistics.wilson_interval(num_hits, num_trials)
    assert found == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_bootstrap_equals_that_of_scipy_is_repeatable_and_ignores_nan() -> None:
    values_N = np.random.default_rng(0).exponential(size=300)
    expected = bootstrap((values_N,), np.mean, method="percentile", rng=1).confidence_interval
    low, high = bootstrap_interval(lambda places: float(values_N[places].mean()), len(values_N))
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=0.02)

    def figure(places: np.ndarray) -> float:
        return math.nan if places[0] % 2 else 0.5

    assert bootstrap_interval(figure, 10) == bootstrap_interval(figure, 10) == (0.5, 0.5)


def documents(num_documents: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss and the number of targets of each document; documents differ in difficulty."""
    random = np.random.default_rng(seed)
    targets_D = random.integers(10, 200, num_documents).astype(np.float64)
    loss_D = targets_D * random.normal(3.0, 0.5, num_documents)
    return loss_D[:, None], targets_D[:, None]


def interval(seed: int = 1, num_samples: int = 500) -> list[float]:
    return ratio_intervals(*documents(60, seed=0), seed=seed, num_samples=num_samples)[:, 0].tolist()


def test_the_interval_depends_little_on_the_seed_and_not_on_how_many_samples_are_drawn_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = interval(seed=1)
    assert interval(seed=1) == whole != interval(seed=2)
    assert interval(seed=2, num_samples=4000) == pytest.approx(interval(seed=1, num_samples=4000), rel=0.01)
    monkeypatch.setattr(statistics, "_AT_A_TIME", 100)
    assert interval() == pytest.approx(whole, rel=1e-12)


def test_intervals_have_their_nominal_coverage() -> None:
    held = 0
    for trial in range(200):
        low, high = ratio_intervals(*documents(80, seed=trial), seed=trial, num_samples=300)[:, 0]
        held += low <= 3.0 <= high
    assert 0.88 * 200 <= held <= 0.99 * 200


def test_the_interval_of_a_mean_ends_1_96_standard_errors_from_it() -> None:
    values_D1 = np.random.default_rng(0).normal(3.0, 0.5, (400, 1))
    ends = ratio_intervals(values_D1, np.ones_like(values_D1), seed=1, num_samples=4000)[:, 0]
    standard_error = values_D1.std() / 400**0.5
    assert (ends - values_D1.mean()) / standard_error == pytest.approx([-1.96, 1.96], abs=0.15)


def test_long_documents_do_not_narrow_the_interval_and_samples_without_targets_are_left_out() -> None:
    loss_D1, targets_D1 = documents(60, seed=0)
    longer = ratio_intervals(100 * loss_D1, 100 * targets_D1, seed=1, num_samples=500)[:, 0]
    assert longer.tolist() == pytest.approx(interval(), rel=1e-9)
    low, high = ratio_intervals(np.array([[4.0], [0.0]]), np.array([[2.0], [0.0]]), seed=1, num_samples=200)[:, 0]
    assert low == high == 2.0


def test_p_values_of_equal_models_are_calibrated_and_those_of_a_constant_difference_are_the_smallest() -> None:
    random = np.random.default_rng(3)
    p_values = [sign_flip_p_value(random.normal(0, 1, 40), seed=trial, num_samples=200) for trial in range(300)]
    assert 0.02 * 300 <= sum(p < 0.05 for p in p_values) <= 0.09 * 300
    assert np.mean(p_values) == pytest.approx(0.5, abs=0.06)
    assert sign_flip_p_value(np.full(30, 0.1), seed=1, num_samples=999) == 1 / 1000
    assert sign_flip_p_value(np.zeros(30), seed=1, num_samples=999) == 1
    assert sign_flip_p_value(np.array([0.5]), seed=1, num_samples=999) == 1  # one document is no evidence


def test_baselines_that_a_figure_does_not_beat_are_named() -> None:
    for value, baseline_value, named in (
        (0.71, 0.7, []),
        (0.7, 0.7, ["counting words"]),
        (0.5, 0.7, ["counting words", "largest class"]),
        (math.nan, 0.7, ["counting words", "largest class"]),
        (0.6, math.nan, []),
    ):
        figure = {"metric": "accuracy", "value": value, "low": value, "high": value}
        baselines = {"baseline": "counting words", "baseline_value": baseline_value}
        trivial = {"trivial": "largest class", "trivial_value": 0.5}
        assert [name for name, _ in Headline.model_validate(figure | baselines | trivial).unbeaten] == named
