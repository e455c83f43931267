"""Claim: the baselines are what their names say, and answer the same twice."""

import numpy as np

from clozeline.tasks.classification.baselines import LabelledTexts, largest_class, tfidf_logistic_regression

DRAW = np.random.default_rng(0)
WORDS = (["oven", "salt", "flour"], ["mast", "keel", "tide"], ["soil", "seed", "root"])


def part(size: int) -> LabelledTexts:
    class_T = DRAW.integers(3, size=size)
    texts = [" ".join(DRAW.choice([*WORDS[place], "the", "of", "and"], size=8)) for place in class_T]
    return LabelledTexts(texts, class_T)


def test_the_largest_class_is_answered_always() -> None:
    train = LabelledTexts(["x"] * 5, np.array([0, 2, 1, 2, 2]))
    assert largest_class(train, 3).tolist() == [2, 2, 2]


def test_counting_words_finds_topics_and_answers_the_same_twice() -> None:
    train, validation, test = part(300), part(60), part(200)
    first = tfidf_logistic_regression(train, validation, test.texts)
    assert (first == test.class_T).mean() > 0.95
    np.testing.assert_array_equal(first, tfidf_logistic_regression(train, validation, test.texts))


def test_two_classes_are_enough() -> None:
    class_T = np.array([0, 1] * 20)
    texts = [WORDS[place][0] for place in class_T]
    predicted_T = tfidf_logistic_regression(LabelledTexts(texts, class_T), LabelledTexts(texts, class_T), texts)
    np.testing.assert_array_equal(predicted_T, class_T)
