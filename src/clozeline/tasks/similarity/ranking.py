"""Exact search: where what belongs to a query stands among all candidates.

Shapes: Q queries, D candidates, H hidden, B queries of a block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clozeline.search.fusion import fused

Floats = npt.NDArray[np.float32]
ScoresOf = Callable[[int, int], Floats]
"""First and last query → `score_BD` of those queries."""

_BLOCK = 256
"""Queries that are scored together: what is in memory does not grow with their number."""


@dataclass(frozen=True)
class Ranked:
    """Of each query."""

    rank_Q: npt.NDArray[np.int64]
    """Of the best candidate that belongs to it, from 1; one that scores the same and does not belong stands before."""
    best_Q: npt.NDArray[np.int64]
    """The candidate with the highest score; of equal ones the first."""

    def recall_at(self, k: int) -> npt.NDArray[np.float64]:
        """1 where it is among the first `k`."""
        return (self.rank_Q <= k).astype(np.float64)

    @property
    def reciprocal(self) -> npt.NDArray[np.float64]:
        """Its mean is the MRR (Voorhees 1999)."""
        return 1.0 / self.rank_Q


def ranked(scores_of: ScoresOf, belonging: Sequence[Sequence[int]]) -> Ranked:
    """Rank all candidates for each query.

    Args:
        scores_of: gives the scores of a block of queries.
        belonging: of each query, the candidates that belong to it; one at least.
    """
    rank_Q = np.zeros(len(belonging), dtype=np.int64)
    best_Q = np.zeros(len(belonging), dtype=np.int64)
    for start in range(0, len(belonging), _BLOCK):
        stop = min(start + _BLOCK, len(belonging))
        score_BD = scores_of(start, stop)
        best_Q[start:stop] = score_BD.argmax(axis=1)
        for query, score_D in enumerate(score_BD, start):
            own = list(belonging[query])
            num_before = int((score_D >= score_D[own].max()).sum() - (score_D[own] >= score_D[own].max()).sum())
            rank_Q[query] = 1 + num_before
    return Ranked(rank_Q, best_Q)


def by_vectors(queries_QH: Floats, candidates_DH: Floats) -> ScoresOf:
    """Cosines of vectors of length 1."""
    return lambda start, stop: queries_QH[start:stop] @ candidates_DH.T


def in_both(vectors: ScoresOf, words: ScoresOf) -> ScoresOf:
    """By meaning and by words at once: what `clozeline search` goes by."""
    return lambda start, stop: fused(vectors(start, stop), words(start, stop))


def chance_of_recall(num_candidates: int, belonging: Sequence[Sequence[int]], k: int) -> float:
    """Expected recall at `k` of a random order: 1 less the chance that none that belongs is drawn."""
    drawn = np.arange(min(k, num_candidates))
    chances = {
        num: 1.0 - float(np.prod(np.maximum(num_candidates - num - drawn, 0) / (num_candidates - drawn)))
        for num in {len(own) for own in belonging}
    }
    return float(np.mean([chances[len(own)] for own in belonging]))
