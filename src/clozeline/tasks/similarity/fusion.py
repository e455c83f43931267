"""Fusion of two scores of the same candidates.

Shapes: Q queries, D candidates.
"""

import numpy as np
import numpy.typing as npt

_COSINE_WEIGHT = 2.0
"""Weight of the cosine, chosen on the validation split of the default task: docs/default-recipe.md."""
Floats = npt.NDArray[np.float32]


def fused(cosine_QD: Floats, words_QD: Floats) -> Floats:
    """Return `score_QD`: a weighted sum of the cosines and of the word scores, scaled to a maximum of 1 for each query.

    Scores are fused instead of ranks, because ranks lose the distance between candidates (convex combination, Bruch,
    Gai & Ingber 2023, section 4).

    Args:
        words_QD: word scores, at least 0; 0 means that no word is in common.
    """
    best_Q1 = words_QD.max(axis=1, keepdims=True)
    score_QD: Floats = words_QD / np.where(best_Q1 > 0, best_Q1, 1) + np.float32(_COSINE_WEIGHT) * cosine_QD
    return score_QD
