"""Claim: all scores of label sets equal scikit-learn's; no threshold beats the chosen one on the same data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support

from clozeline.tasks.classification.scores import best_threshold, macro_f1_of_sets, micro_f1, score_sets

LABELS = ("a", "b", "c")
sets = arrays(bool, st.tuples(st.integers(1, 20), st.just(len(LABELS))))


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_scores_equal_those_of_scikit_learn(data: st.DataObject) -> None:
    actual_TC = data.draw(sets)
    predicted_TC = data.draw(arrays(bool, actual_TC.shape))
    scores = score_sets(actual_TC, predicted_TC, LABELS)
    assert scores.micro_f1 == pytest.approx(f1_score(actual_TC, predicted_TC, average="micro", zero_division=0))
    assert scores.macro_f1 == pytest.approx(f1_score(actual_TC, predicted_TC, average="macro", zero_division=0))
    assert scores.exact_match == pytest.approx(accuracy_score(actual_TC, predicted_TC))
    columns = precision_recall_fscore_support(actual_TC, predicted_TC, zero_division=0)
    for label, precision, recall, f1, num_texts in zip(LABELS, *columns, strict=True):
        of_class = scores.per_class[label]
        assert (of_class.precision, of_class.recall, of_class.f1) == pytest.approx((precision, recall, f1))
        assert of_class.num_texts == num_texts


@pytest.mark.parametrize("figure", [micro_f1, macro_f1_of_sets])
def test_the_chosen_threshold_has_the_best_score(figure) -> None:
    draw = np.random.default_rng(0)
    actual_TC = draw.random((80, 3)) < 0.2
    share_TC = np.clip(actual_TC * 0.1 + draw.random((80, 3)) * 0.2, 0, 1)
    chosen = best_threshold(actual_TC, share_TC, figure)
    best = max(figure(actual_TC, share_TC > threshold) for threshold in share_TC.ravel())
    assert figure(actual_TC, share_TC > chosen) == pytest.approx(best)
    assert figure(actual_TC, share_TC > 0.5) < best


def test_the_best_threshold_nearest_one_half_is_chosen() -> None:
    actual_TC = np.array([[True, False]])
    assert best_threshold(actual_TC, np.array([[0.9, 0.1]]), micro_f1) == 0.5
    assert 0.1 < best_threshold(actual_TC, np.array([[0.4, 0.1]]), micro_f1) < 0.4
