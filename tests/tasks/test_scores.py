"""Claim: every score is that of its field's reference implementation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support

from clozeline.tasks.scores import score, wilson_interval

LABELS = ("a", "b", "c", "d")
places = st.integers(0, len(LABELS) - 1)


@given(pairs=st.lists(st.tuples(places, places), min_size=1, max_size=60))
@settings(deadline=None)
def test_scores_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    actual, predicted = np.array(pairs).T
    scores = score(actual, predicted, LABELS)
    assert scores.accuracy == pytest.approx(accuracy_score(actual, predicted))
    assert scores.macro_f1 == pytest.approx(f1_score(actual, predicted, average="macro", zero_division=0))
    columns = precision_recall_fscore_support(actual, predicted, labels=range(len(LABELS)), zero_division=0)
    for label, precision, recall, f1, num_texts in zip(LABELS, *columns, strict=True):
        of_class = scores.per_class[label]
        assert (of_class.precision, of_class.recall, of_class.f1) == pytest.approx((precision, recall, f1))
        assert of_class.num_texts == num_texts


@given(num_trials=st.integers(1, 5000), share=st.floats(0, 1))
def test_the_interval_is_scipys_wilson_interval(num_trials: int, share: float) -> None:
    num_hits = round(share * num_trials)
    expected = binomtest(num_hits, num_trials).proportion_ci(method="wilson")
    assert wilson_interval(num_hits, num_trials) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_interval_stays_between_0_and_1_at_the_ends() -> None:
    assert wilson_interval(0, 10)[0] == pytest.approx(0, abs=1e-12)
    assert 0.99 < wilson_interval(10, 10)[1] <= 1
