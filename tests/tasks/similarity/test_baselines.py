"""Claim: the baselines equal examples computed by hand from their papers, and scikit-learn."""

from math import log

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from clozeline.tasks.similarity.bm25 import bm25, tfidf_cosines

DOCUMENTS = ["sort the list", "the list, the list of lists", "a file"]


def test_bm25_equals_a_hand_computed_example() -> None:
    """Mean length (3 + 6 + 2) / 3; `list` is in two of three documents, once and twice; `sort` in one."""
    mean = 11 / 3
    idf_list, idf_sort = log(1 + 1.5 / 2.5), log(1 + 2.5 / 1.5)
    first = (idf_sort + idf_list) * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 3 / mean))
    second = idf_list * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 6 / mean))
    scores = bm25(["Sort: list!", "unheard of"], DOCUMENTS)(0, 2)
    assert scores[0] == pytest.approx([first, second, 0.0], rel=1e-5)
    assert scores[1].argmax() == 1


def test_a_repeated_query_word_counts_twice() -> None:
    once, twice = bm25(["list", "list list"], DOCUMENTS)(0, 2)
    assert twice == pytest.approx(2 * once)
    assert np.array_equal(bm25(["a", "list list"], DOCUMENTS)(1, 2)[0], twice)


def test_tfidf_cosines_equal_those_of_scikit_learn() -> None:
    firsts, seconds = ["sort a list", "a file"], ["the list", "nothing here"]
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b").fit(DOCUMENTS)
    expected = cosine_similarity(vectorizer.transform(firsts), vectorizer.transform(seconds)).diagonal()
    assert tfidf_cosines(DOCUMENTS, firsts, seconds) == pytest.approx(expected)
    assert expected[0] > 0 == expected[1]
