"""Exact search: rank of the matching candidates of a query among all candidates.

Shapes: Q queries, D candidates, H hidden, B queries of a block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
ScoresOf = Callable[[int, int], Floats]
"""Function (start, stop) → `score_BD` of the queries `start` … `stop - 1`."""

_BLOCK = 256
"""Queries scored together, so that memory does not grow with the number of queries."""


@dataclass(frozen=True)
class Ranked:
    """Result of the search for each query."""

    rank_Q: npt.NDArray[np.int64]
    """Rank, from 1, of the best matching candidate; other candidates with the same score rank before it."""
    best_Q: npt.NDArray[np.int64]
    """Index of the candidate with the highest score; the first of them on a tie."""

    def of(self, queries: Sequence[int]) -> Self:
        """Return the result for these queries only."""
        return type(self)(self.rank_Q[list(queries)], self.best_Q[list(queries)])

    def recall_at(self, k: int) -> npt.NDArray[np.float64]:
        """Return 1 for each query with a matching candidate among the first `k`, else 0."""
        return (self.rank_Q <= k).astype(np.float64)

    @property
    def reciprocal(self) -> npt.NDArray[np.float64]:
        """Reciprocal ranks; their mean is the MRR (Voorhees 1999)."""
        return 1.0 / self.rank_Q


def ranked(scores_of: ScoresOf, belonging: Sequence[Sequence[int]]) -> Ranked:
    """Rank all candidates for each query.

    Args:
        scores_of: returns the scores of a block of queries.
        belonging: for each query the indices of its matching candidates, at least one.
    """
    (found,) = ranked_by_each(lambda start, stop: (scores_of(start, stop),), belonging)
    return found


def ranked_by_each(
    scores_of: Callable[[int, int], Sequence[Floats]], belonging: Sequence[Sequence[int]]
) -> list[Ranked]:
    """Rank by several scores of the same queries and candidates; each block is scored once."""
    blocks = []
    for start in range(0, len(belonging), _BLOCK):
        stop = min(start + _BLOCK, len(belonging))
        blocks.append([_ranked(score_BD, belonging[start:stop]) for score_BD in scores_of(start, stop)])
    return [
        Ranked(np.concatenate([part.rank_Q for part in parts]), np.concatenate([part.best_Q for part in parts]))
        for parts in zip(*blocks, strict=True)
    ]


def _ranked(score_BD: Floats, belonging: Sequence[Sequence[int]]) -> Ranked:
    """Rank one block. Arrays over P hold the pairs of a query and a matching candidate, grouped by query."""
    size_B = np.array([len(own) for own in belonging])
    start_B = np.cumsum(size_B) - size_B
    query_P = np.repeat(np.arange(len(belonging)), size_B)
    score_P = score_BD[query_P, np.concatenate([np.array(own, dtype=np.int64) for own in belonging])]
    best_B = np.maximum.reduceat(score_P, start_B)
    num_as_good_B = (score_BD >= best_B[:, None]).sum(axis=1)
    num_own_B = np.add.reduceat((score_P >= best_B[query_P]).astype(np.int64), start_B)
    return Ranked(1 + num_as_good_B - num_own_B, score_BD.argmax(axis=1))


def by_vectors(queries_QH: Floats, candidates_DH: Floats) -> ScoresOf:
    """Return a scorer by cosine, for vectors of length 1."""
    return lambda start, stop: queries_QH[start:stop] @ candidates_DH.T


def chance_of_recall(num_candidates: int, belonging: Sequence[Sequence[int]], k: int) -> float:
    """Return the expected recall at `k` of a random order: 1 minus the probability that no match is drawn."""
    drawn = np.arange(min(k, num_candidates))
    chances = {
        num: 1.0 - float(np.prod(np.maximum(num_candidates - num - drawn, 0) / (num_candidates - drawn)))
        for num in {len(own) for own in belonging}
    }
    return float(np.mean([chances[len(own)] for own in belonging]))
