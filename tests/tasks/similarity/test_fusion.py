"""Claim: fusion adds cosines and word scores; the word scores of each query are scaled by their own maximum."""

import numpy as np
import pytest

from clozeline.tasks.similarity.bm25 import fused

COSINES = np.array([[0.5, 0.4, -0.2], [0.1, 0.3, 0.2]], dtype=np.float32)


def test_fused_scores_add_cosines_and_word_scores_scaled_to_at_most_1() -> None:
    words = np.array([[0.0, 30.0, 15.0], [0.2, 0.0, 0.1]], dtype=np.float32)
    assert fused(COSINES, words) == pytest.approx(np.array([[1.0, 1.8, 0.1], [1.2, 0.6, 0.9]]))


def test_without_common_words_the_embeddings_alone_decide() -> None:
    assert fused(COSINES, np.zeros((2, 3), dtype=np.float32)).argsort().tolist() == COSINES.argsort().tolist()
