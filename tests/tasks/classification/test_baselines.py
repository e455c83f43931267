"""Claim: each baseline is the method that its name says, and answers the same twice."""

import numpy as np

from clozeline.tasks.classification.scores import (
    LabelledTexts,
    TextsOrPairs,
    largest_class,
    tfidf_label_shares,
    tfidf_logistic_regression,
)

DRAW = np.random.default_rng(0)
WORDS = (["oven", "salt", "flour"], ["mast", "keel", "tide"], ["soil", "seed", "root"])


def part(size: int) -> LabelledTexts:
    class_T = DRAW.integers(3, size=size)
    texts = [" ".join(DRAW.choice([*WORDS[place], "the", "of", "and"], size=8)) for place in class_T]
    return LabelledTexts(TextsOrPairs(texts), class_T)


def test_the_majority_baseline_always_predicts_the_largest_class() -> None:
    assert largest_class(np.array([0, 2, 1, 2, 2]), 3).tolist() == [2, 2, 2]


def test_the_tfidf_baseline_finds_topics_and_is_deterministic() -> None:
    train, validation, test = part(300), part(60), part(200)
    first = tfidf_logistic_regression(train, validation, test.texts)
    assert (first == test.class_T).mean() > 0.95
    np.testing.assert_array_equal(first, tfidf_logistic_regression(train, validation, test.texts))


def test_the_tfidf_baseline_works_with_two_classes() -> None:
    class_T = np.array([0, 1] * 20)
    texts = TextsOrPairs([WORDS[place][0] for place in class_T])
    predicted_T = tfidf_logistic_regression(LabelledTexts(texts, class_T), LabelledTexts(texts, class_T), texts)
    np.testing.assert_array_equal(predicted_T, class_T)


def test_tfidf_of_pairs_sees_words_shared_by_both_texts() -> None:
    draw = np.random.default_rng(1)
    words = [word for topic in WORDS for word in topic]
    first = [str(draw.choice(words)) for _ in range(600)]
    second = [word if draw.random() < 0.5 else str(draw.choice(words)) for word in first]
    class_T = np.array([int(one == other) for one, other in zip(first, second, strict=True)])
    whole = LabelledTexts(TextsOrPairs(first, second), class_T)
    assert (tfidf_logistic_regression(whole, whole, whole.texts) == class_T).mean() > 0.99
    alone = LabelledTexts(TextsOrPairs(first), class_T)
    assert (tfidf_logistic_regression(alone, alone, alone.texts) == class_T).mean() < 0.8


def test_each_label_has_its_own_probability_and_a_label_on_all_texts_has_1() -> None:
    labelled = part(300)
    is_true_TC = np.stack([labelled.class_T == 0, labelled.class_T != 2, labelled.class_T >= 0], axis=1)
    (shares,) = tfidf_label_shares(labelled.texts, is_true_TC.astype(np.float32), np.mean, [labelled.texts])
    assert ((shares[:, :2] > 0.5) == is_true_TC[:, :2]).mean() > 0.95
    assert (shares[:, 2] == 1).all()
