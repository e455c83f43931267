"""Several orders of the same candidates made one.

Shapes: B queries, D candidates, K of them that an order speaks of.
"""

import numpy as np
import numpy.typing as npt

DEPTH = 1000
"""An order speaks of its first so many candidates; the others are nothing to it."""
_CONSTANT = 60
Floats = npt.NDArray[np.float32]


def fused(*orders_BD: Floats) -> Floats:
    """`score_BD`: reciprocal rank fusion (Cormack, Clarke & Buettcher 2009, with their k = 60).

    Ranks and not scores are added, so that no order needs to be of another's scale. What an order scores -inf it does
    not speak of; of equal scores the first candidate comes first.
    """
    score_BD: Floats = np.sum([_reciprocal_ranks(order_BD) for order_BD in orders_BD], axis=0, dtype=np.float32)
    return score_BD


def _reciprocal_ranks(order_BD: Floats) -> Floats:
    depth = min(DEPTH, order_BD.shape[1])
    best_BK = np.sort(np.argpartition(-order_BD, depth - 1, axis=1)[:, :depth], axis=1)
    found_BK = np.take_along_axis(order_BD, best_BK, axis=1)
    in_order_BK = np.argsort(-found_BK, axis=1, kind="stable")
    best_BK = np.take_along_axis(best_BK, in_order_BK, axis=1)
    is_found_BK = np.isfinite(np.take_along_axis(found_BK, in_order_BK, axis=1))
    score_BD = np.zeros(order_BD.shape, dtype=np.float32)
    points_K = (1.0 / (_CONSTANT + 1 + np.arange(depth))).astype(np.float32)
    np.put_along_axis(score_BD, best_BK, np.where(is_found_BK, points_K, np.float32(0)), axis=1)
    return score_BD
