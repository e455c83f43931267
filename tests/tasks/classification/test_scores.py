"""Claim: every score equals that of the reference implementation in its field."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, precision_recall_fscore_support

from clozeline.tasks.classification import scores
from clozeline.tasks.classification.scores import TextsOrPairs, best_threshold, tfidf_logistic_regression

LABELS = ("a", "b", "c", "d")
places = st.integers(0, len(LABELS) - 1)


@given(pairs=st.lists(st.tuples(places, places), min_size=1, max_size=60), positive=places)
@settings(deadline=None)
def test_scores_equal_those_of_scikit_learn(pairs: list[tuple[int, int]], positive: int) -> None:
    actual, predicted = np.array(pairs).T
    found = scores.score(actual, predicted, len(LABELS))
    assert found["accuracy"] == pytest.approx(accuracy_score(actual, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(actual, predicted, average="macro", zero_division=0))
    if len({*actual.tolist(), *predicted.tolist()}) > 1:  # for a single class scikit-learn only warns
        assert found["matthews"] == pytest.approx(matthews_corrcoef(actual, predicted))
    columns = precision_recall_fscore_support(actual, predicted, labels=range(len(LABELS)), zero_division=0)
    for label, *figures in zip(LABELS, *columns, strict=True):
        assert [*scores.score_each(actual, predicted, LABELS)[label].values()] == pytest.approx(figures)
    assert scores.f1_of(positive)(actual, predicted, len(LABELS)) == pytest.approx(columns[2][positive])


@pytest.mark.parametrize("pairs", [[(1, 2)] * 5, [(0, 0), (1, 0)], [(3, 0), (3, 1), (3, 2)], [(0, 0), (0, 0)]])
def test_constant_classes_have_zero_correlation(pairs: list[tuple[int, int]]) -> None:
    assert scores.matthews(*np.array(pairs).T, len(LABELS)) == 0


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_scores_of_label_sets_equal_those_of_scikit_learn(data: st.DataObject) -> None:
    actual_TC = data.draw(arrays(bool, st.tuples(st.integers(1, 20), st.just(3))))
    predicted_TC = data.draw(arrays(bool, actual_TC.shape))
    micro, macro = (f1_score(actual_TC, predicted_TC, average=name, zero_division=0) for name in ("micro", "macro"))
    expected = {"micro_f1": micro, "macro_f1": macro, "exact_match": accuracy_score(actual_TC, predicted_TC)}
    assert scores.score_sets(actual_TC, predicted_TC) == pytest.approx(expected)
    columns = precision_recall_fscore_support(actual_TC, predicted_TC, zero_division=0)
    for label, *figures in zip(LABELS[:3], *columns, strict=True):
        assert [*scores.score_each_label(actual_TC, predicted_TC, LABELS[:3])[label].values()] == pytest.approx(figures)


@pytest.mark.parametrize("figure", scores.SET_FIGURES.values())
def test_the_chosen_threshold_has_the_best_score(figure: scores.SetFigure) -> None:
    draw = np.random.default_rng(0)
    actual_TC = draw.random((80, 3)) < 0.2
    share_TC = np.clip(actual_TC * 0.1 + draw.random((80, 3)) * 0.2, 0, 1)
    best = max(figure(actual_TC, share_TC > threshold) for threshold in share_TC.ravel())
    assert figure(actual_TC, share_TC > best_threshold(actual_TC, share_TC, figure)) == pytest.approx(best)
    assert figure(actual_TC, share_TC > 0.5) < best


def test_the_best_threshold_nearest_one_half_is_chosen() -> None:
    actual_TC = np.array([[True, False]])
    assert best_threshold(actual_TC, np.array([[0.9, 0.1]]), scores.micro_f1) == 0.5
    assert 0.1 < best_threshold(actual_TC, np.array([[0.4, 0.1]]), scores.micro_f1) < 0.4


def test_the_majority_baseline_always_predicts_the_largest_class() -> None:
    assert scores.largest_class(np.array([0, 2, 1, 2, 2]), 3).tolist() == [2, 2, 2]


DRAW = np.random.default_rng(0)
WORDS = (["oven", "salt", "flour"], ["mast", "keel", "tide"], ["soil", "seed", "root"])


def part(size: int, num_classes: int = 3) -> scores.LabelledTexts:
    class_T = DRAW.integers(num_classes, size=size)
    return TextsOrPairs(
        [" ".join(DRAW.choice([*WORDS[place], "the", "of", "and"], size=8)) for place in class_T]
    ), class_T


@pytest.mark.parametrize("num_classes", [2, 3])
def test_the_tfidf_baseline_finds_topics_and_is_deterministic(num_classes: int) -> None:
    train, validation, (texts, class_T) = (part(size, num_classes) for size in (300, 60, 200))
    first = tfidf_logistic_regression(train, validation, texts)
    assert (first == class_T).mean() > 0.95
    np.testing.assert_array_equal(first, tfidf_logistic_regression(train, validation, texts))


def test_tfidf_of_pairs_sees_words_shared_by_both_texts() -> None:
    words = [word for topic in WORDS for word in topic]
    first, other = DRAW.choice(words, size=(2, 600))
    second = np.where(DRAW.random(600) < 0.5, first, other)
    class_T = (first == second).astype(np.int64)
    for texts, least, most in ((TextsOrPairs([*first], [*second]), 0.99, 1), (TextsOrPairs([*first]), 0, 0.8)):
        found_T = tfidf_logistic_regression((texts, class_T), (texts, class_T), texts)
        assert least <= (found_T == class_T).mean() <= most


def test_each_label_has_its_own_probability_and_a_label_on_all_texts_has_1() -> None:
    texts, class_T = part(300)
    is_true_TC = np.stack([class_T == 0, class_T != 2, class_T >= 0], axis=1)
    (shares,) = scores.tfidf_label_shares(texts, is_true_TC.astype(np.float32), np.mean, [texts])
    assert ((shares[:, :2] > 0.5) == is_true_TC[:, :2]).mean() > 0.95
    assert (shares[:, 2] == 1).all()
