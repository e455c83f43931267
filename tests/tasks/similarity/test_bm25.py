"""Claim: BM25 scores every document by its formula, and a saved index gives the same scores."""

import random
from math import log
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from clozeline.tasks.similarity.bm25 import WordIndex, bm25, fused, tfidf_cosines, words_of

WORDS = ["sort", "list", "file", "hash", "shape", "row", "Column", "größe", "x1"]
DRAW = random.Random(0)
DOCUMENTS = [" ".join(DRAW.choices(WORDS, k=DRAW.randint(0, 12))) for _ in range(60)]
QUERIES = ["sort", "List, list; GRÖSSE größe", "unheard of", "", "row column x1 hash row"]


def by_formula(query: str) -> list[float]:
    split = [words_of(document) for document in DOCUMENTS]
    mean = sum(map(len, split)) / len(split)
    scores = []
    for words in split:
        score = 0.0
        for word in words_of(query):
            having = sum(word in other for other in split)
            idf = log(1 + (len(split) - having + 0.5) / (having + 0.5))
            times = words.count(word)
            score += idf * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * len(words) / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize("query", QUERIES)
def test_scores_follow_the_bm25_formula_also_from_a_saved_index(query: str, tmp_path: Path) -> None:
    index = WordIndex.of(DOCUMENTS)
    assert index.scores(query) == pytest.approx(by_formula(query), rel=1e-5)
    index.save(tmp_path)
    assert np.array_equal(WordIndex.open(tmp_path).scores(query), index.scores(query))


def test_a_range_of_queries_is_scored_and_a_repeated_word_counts_twice() -> None:
    found = bm25(["list", *QUERIES, "list list"], DOCUMENTS)
    assert found(1, 6) == pytest.approx(np.array([by_formula(query) for query in QUERIES]), rel=1e-5)
    assert found(6, 7)[0] == pytest.approx(2 * found(0, 1)[0])


def test_documents_without_words_are_never_found() -> None:
    assert WordIndex.of(["", "..."]).scores("any").tolist() == [0, 0]


def test_fused_scores_add_cosines_and_word_scores_scaled_to_at_most_1() -> None:
    cosines = np.array([[0.5, 0.4, -0.2], [0.1, 0.3, 0.2]], dtype=np.float32)
    words = np.array([[0.0, 30.0, 15.0], [0.2, 0.0, 0.1]], dtype=np.float32)
    assert fused(cosines, words) == pytest.approx(np.array([[1.0, 1.8, 0.1], [1.2, 0.6, 0.9]]))
    assert fused(cosines, 0 * words).argsort().tolist() == cosines.argsort().tolist()


def test_tfidf_cosines_equal_those_of_scikit_learn() -> None:
    firsts, seconds = ["sort a list", "a file"], ["sort the list", "nothing here"]
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b").fit(DOCUMENTS)
    expected = cosine_similarity(vectorizer.transform(firsts), vectorizer.transform(seconds)).diagonal()
    assert tfidf_cosines(DOCUMENTS, firsts, seconds) == pytest.approx(expected)
    assert expected[0] > 0 == expected[1]
