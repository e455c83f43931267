"""Exact search: where what belongs to a query stands among all candidates.

Shapes: Q queries, D candidates, H hidden, B queries of a block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    (found,) = ranked_by_each(lambda start, stop: (scores_of(start, stop),), belonging)
    return found


def ranked_by_each(
    scores_of: Callable[[int, int], Sequence[Floats]], belonging: Sequence[Sequence[int]]
) -> list[Ranked]:
    """The same by several scores of the same queries and candidates, each of which is asked for once."""
    blocks = []
    for start in range(0, len(belonging), _BLOCK):
        stop = min(start + _BLOCK, len(belonging))
        blocks.append([_ranked(score_BD, belonging[start:stop]) for score_BD in scores_of(start, stop)])
    return [
        Ranked(np.concatenate([part.rank_Q for part in parts]), np.concatenate([part.best_Q for part in parts]))
        for parts in zip(*blocks, strict=True)
    ]


def _ranked(score_BD: Floats, belonging: Sequence[Sequence[int]]) -> Ranked:
    """Pairs of a query and a candidate of its own stand one behind the other, those of a query together."""
    size_B = np.array([len(own) for own in belonging])
    start_B = np.cumsum(size_B) - size_B
    query_P = np.repeat(np.arange(len(belonging)), size_B)
    score_P = score_BD[query_P, np.concatenate([np.array(own, dtype=np.int64) for own in belonging])]
    best_B = np.maximum.reduceat(score_P, start_B)
    num_as_good_B = (score_BD >= best_B[:, None]).sum(axis=1)
    num_own_B = np.add.reduceat((score_P >= best_B[query_P]).astype(np.int64), start_B)
    return Ranked(1 + num_as_good_B - num_own_B, score_BD.argmax(axis=1))


def by_vectors(queries_QH: Floats, candidates_DH: Floats) -> ScoresOf:
    """Cosines of vectors of length 1."""
    return lambda start, stop: queries_QH[start:stop] @ candidates_DH.T


def chance_of_recall(num_candidates: int, belonging: Sequence[Sequence[int]], k: int) -> float:
    """Expected recall at `k` of a random order: 1 less the chance that none that belongs is drawn."""
    drawn = np.arange(min(k, num_candidates))
    chances = {
        num: 1.0 - float(np.prod(np.maximum(num_candidates - num - drawn, 0) / (num_candidates - drawn)))
        for num in {len(own) for own in belonging}
    }
    return float(np.mean([chances[len(own)] for own in belonging]))
