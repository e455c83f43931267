"""Two orders of the same candidates made one.

Shapes: Q queries, D candidates.
"""

import numpy as np
import numpy.typing as npt

_COSINE_WEIGHT = 2.0
"""Chosen on the validation part of the default task: docs/default-recipe.md."""
Floats = npt.NDArray[np.float32]


def fused(cosine_QD: Floats, words_QD: Floats) -> Floats:
    """`score_QD`: a weighted sum of the cosines and of what is scored for words in common, the best of each query 1.

    Scores and not ranks: how much better the first is than the second is what ranks forget (Bruch, Gai & Ingber 2023,
    section 4: convex combination).

    Args:
        words_QD: 0 or more; 0 is no word in common.
    """
    best_Q1 = words_QD.max(axis=1, keepdims=True)
    score_QD: Floats = words_QD / np.where(best_Q1 > 0, best_Q1, 1) + np.float32(_COSINE_WEIGHT) * cosine_QD
    return score_QD
