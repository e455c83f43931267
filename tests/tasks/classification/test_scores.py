"""Claim: every score equals that of the reference implementation in its field."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, precision_recall_fscore_support

from clozeline.tasks.classification.scores import f1_of, score

LABELS = ("a", "b", "c", "d")
places = st.integers(0, len(LABELS) - 1)


@given(pairs=st.lists(st.tuples(places, places), min_size=1, max_size=60))
@settings(deadline=None)
def test_scores_equal_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    actual, predicted = np.array(pairs).T
    scores = score(actual, predicted, LABELS)
    assert scores.accuracy == pytest.approx(accuracy_score(actual, predicted))
    assert scores.macro_f1 == pytest.approx(f1_score(actual, predicted, average="macro", zero_division=0))
    if len({*actual.tolist(), *predicted.tolist()}) > 1:  # for a single class scikit-learn only warns
        assert scores.matthews == pytest.approx(matthews_corrcoef(actual, predicted))
    columns = precision_recall_fscore_support(actual, predicted, labels=range(len(LABELS)), zero_division=0)
    for label, precision, recall, f1, num_texts in zip(LABELS, *columns, strict=True):
        of_class = scores.per_class[label]
        assert (of_class.precision, of_class.recall, of_class.f1) == pytest.approx((precision, recall, f1))
        assert of_class.num_texts == num_texts


@given(pairs=st.lists(st.tuples(places, places), min_size=1, max_size=60), positive=places)
@settings(deadline=None)
def test_f1_of_one_class_equals_that_of_scikit_learn(pairs: list[tuple[int, int]], positive: int) -> None:
    actual, predicted = np.array(pairs).T
    theirs = f1_score(actual == positive, predicted == positive, zero_division=0)
    assert f1_of(positive)(actual, predicted, len(LABELS)) == pytest.approx(theirs)


@pytest.mark.parametrize("pairs", [[(1, 2)] * 5, [(0, 0), (1, 0)], [(3, 0), (3, 1), (3, 2)]])
def test_constant_classes_have_zero_correlation(pairs: list[tuple[int, int]]) -> None:
    actual, predicted = np.array(pairs).T
    assert score(actual, predicted, LABELS).matthews == matthews_corrcoef(actual, predicted) == 0


def test_a_single_class_has_zero_correlation() -> None:
    assert score(np.array([0, 0]), np.array([0, 0]), LABELS).matthews == 0
