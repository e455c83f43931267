"""Claim: expectation and search over the lattice equal an enumeration of every way to cut a word."""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pytest

from clozeline.tokenizing.vocabularies import Lattice, learn_scores

PROBABILITY = {"a": 0.2, "b": 0.15, "c": 0.05, "ab": 0.3, "bc": 0.1, "abc": 0.1, "ca": 0.1}
WORDS = ["abc", "a", "cabab", "abcabc", "bcx"]
COUNTS = np.array([3, 1, 2, 5, 7])


def cuts(word: str) -> Iterator[list[str]]:
    """Return every way to cut `word` into known pieces."""
    if not word:
        yield []
    for end in range(1, len(word) + 1):
        if word[:end] in PROBABILITY:
            yield from ([word[:end], *rest] for rest in cuts(word[end:]))


def probability(pieces: Sequence[str]) -> float:
    return math.prod(PROBABILITY[piece] for piece in pieces)


@pytest.fixture
def lattice() -> Lattice:
    return Lattice.build(WORDS, {piece: ordinal for ordinal, piece in enumerate(PROBABILITY)})


def test_expected_counts_sum_over_all_segmentations(lattice: Lattice) -> None:
    expected = dict.fromkeys(PROBABILITY, 0.0)
    for word, count in zip(WORDS, COUNTS, strict=True):
        total = sum(map(probability, cuts(word)))
        for pieces in cuts(word):
            for piece in pieces:
                expected[piece] += count * probability(pieces) / total
    found = lattice.expected_counts(np.array(list(PROBABILITY.values())), COUNTS)
    np.testing.assert_allclose(found, list(expected.values()), rtol=1e-12)


def test_the_best_segmentation_is_the_likeliest_one(lattice: Lattice) -> None:
    best = [max(map(probability, cuts(word)), default=0.0) for word in WORDS]
    found = lattice.best_log_probability(np.log(list(PROBABILITY.values())))
    np.testing.assert_allclose(np.exp(found), best, rtol=1e-12)


def test_a_word_that_pieces_cannot_cover_adds_no_counts() -> None:
    lattice = Lattice.build(["bcx"], {piece: ordinal for ordinal, piece in enumerate(PROBABILITY)})
    assert lattice.expected_counts(np.array(list(PROBABILITY.values())), np.array([7])).sum() == 0


def parts(words: Iterable[str]) -> list[str]:
    return sorted({word[start:end] for word in words for start in range(5) for end in range(start + 1, 6)} - {""})


def test_frequent_words_stay_whole_and_characters_are_never_lost() -> None:
    counts = {"▁the": 1000, "▁then": 10, "▁hen": 300, "▁ten": 5, "▁net": 1}
    candidates = sorted(
        {word[start:end] for word in counts for start in range(5) for end in range(start + 1, 6)} - {""}
    )
    scores = learn_scores(counts, candidates, 8)
    assert len(scores) == 8
    assert {"▁", "t", "h", "e", "n", "▁the", "▁hen"} <= set(scores)
    assert list(scores.values()) == sorted(scores.values(), reverse=True)


def test_scores_are_log_probabilities() -> None:
    scores = learn_scores({"▁ab": 4, "▁a": 6}, ["▁", "a", "b", "▁a", "▁ab"], 5)
    assert sum(math.exp(score) for score in scores.values()) == pytest.approx(1, abs=1e-5)


def test_the_order_of_words_and_candidates_changes_nothing() -> None:
    counts = {"▁the": 50, "▁then": 50, "▁hen": 50, "▁ten": 50, "▁net": 50}
    candidates = sorted(
        {word[start:end] for word in counts for start in range(5) for end in range(start + 1, 6)} - {""}
    )
    backwards = dict(reversed(counts.items()))
    assert learn_scores(counts, candidates, 10) == learn_scores(backwards, candidates[::-1], 10)
