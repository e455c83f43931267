"""Claim: fusion adds cosines and word scores; the word scores of each query are scaled by their own maximum."""

import numpy as np
import pytest

from clozeline.tasks.similarity.fusion import fused

COSINES = np.array([[0.5, 0.4, -0.2], [0.1, 0.3, 0.2]], dtype=np.float32)


def test_scores_are_added_and_the_best_by_words_counts_one() -> None:
    words = np.array([[0.0, 30.0, 15.0], [0.2, 0.0, 0.1]], dtype=np.float32)
    assert fused(COSINES, words) == pytest.approx(np.array([[1.0, 1.8, 0.1], [1.2, 0.6, 0.9]]))


def test_without_a_word_in_common_meaning_decides_alone() -> None:
    assert fused(COSINES, np.zeros((2, 3), dtype=np.float32)).argsort().tolist() == COSINES.argsort().tolist()
