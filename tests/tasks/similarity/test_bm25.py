"""Claim: BM25 scores every document by its formula, and a saved index gives the same scores."""

import random
from math import log
from pathlib import Path

import numpy as np
import pytest

from clozeline.tasks.similarity.bm25 import WordIndex, words_of

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
