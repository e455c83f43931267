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


def drawn(num: int, longest: int) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(0, longest))) for _ in range(num)]


def by_formula(query: str, documents: list[str]) -> list[float]:
    split = [words_of(document) for document in documents]
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


@pytest.mark.parametrize("query", ["sort", "List, list; GRÖSSE größe", "unheard of", "", "row column x1 hash row"])
def test_scores_follow_the_bm25_formula(query: str, tmp_path: Path) -> None:
    documents = drawn(60, 12)
    index = WordIndex.of(documents)
    assert index.scores(query) == pytest.approx(by_formula(query, documents), rel=1e-5)
    index.save(tmp_path)
    assert np.array_equal(WordIndex.open(tmp_path).scores(query), index.scores(query))


def test_documents_without_words_are_never_found() -> None:
    assert WordIndex.of(["", "..."]).scores("any").tolist() == [0, 0]


COSINES = np.array([[0.5, 0.4, -0.2], [0.1, 0.3, 0.2]], dtype=np.float32)


def test_fused_scores_add_cosines_and_word_scores_scaled_to_at_most_1() -> None:
    words = np.array([[0.0, 30.0, 15.0], [0.2, 0.0, 0.1]], dtype=np.float32)
    assert fused(COSINES, words) == pytest.approx(np.array([[1.0, 1.8, 0.1], [1.2, 0.6, 0.9]]))


def test_without_common_words_the_embeddings_alone_decide() -> None:
    assert fused(COSINES, np.zeros((2, 3), dtype=np.float32)).argsort().tolist() == COSINES.argsort().tolist()


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
