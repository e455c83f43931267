"""Conversion of logits to the likeliest answers and their probabilities.

Shapes: V classes or vocabulary; T tokens, C tags.
"""

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.export.manifest import ScoreFunction
from clozeline.errors import DataError

_PARTS_PER_ANSWER = 16


def likeliest(logits_V: npt.NDArray[np.float32], top_k: int) -> list[tuple[int, float]]:
    """Return the indices of the `top_k` largest logits (all if there are fewer) with their softmax, best first.

    Equal logits keep their order. The result is stable for logits of any size; the sum is computed in float64.
    """
    top_k = min(top_k, len(logits_V))
    places = np.flatnonzero(logits_V >= _bound(logits_V, top_k))
    best = places[np.argsort(-logits_V[places], kind="stable")[:top_k]]
    shifted_V = np.exp(logits_V - logits_V[best[0]])
    probabilities = shifted_V[best] / shifted_V.sum(dtype=np.float64)
    return list(zip(best.tolist(), probabilities.tolist(), strict=True))


def _bound(logits_V: npt.NDArray[np.float32], top_k: int) -> float:
    """Return a value that at least `top_k` logits reach, and few others.

    For a large vocabulary it is the `top_k`-th largest of the maxima of its parts, which takes a tenth of the time of a
    full sort.
    """
    num_parts = _PARTS_PER_ANSWER * top_k
    if len(logits_V) < 4 * num_parts:
        return float(np.partition(logits_V, -top_k)[-top_k])
    largest = np.maximum.reduceat(logits_V, np.arange(0, len(logits_V), len(logits_V) // num_parts))
    return float(np.partition(largest, -top_k)[-top_k])


def scored(logits_V: npt.NDArray[np.float32], top_k: int, function: ScoreFunction) -> list[tuple[int, float]]:
    """Return the indices of `likeliest` with scores by `function`."""
    best = likeliest(logits_V, top_k)
    if function == "softmax":
        return best
    logits = [(place, float(logits_V[place])) for place, _ in best]
    if function == "none":
        return logits
    return [(place, float(0.5 + 0.5 * np.tanh(0.5 * logit))) for place, logit in logits]


def softmax(logits_TC: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the probabilities of each row; stable for logits of any size."""
    shifted_TC = np.exp(logits_TC - logits_TC.max(axis=1, keepdims=True))
    probability_TC: npt.NDArray[np.float32] = shifted_TC / shifted_TC.sum(axis=1, keepdims=True)
    return probability_TC


def check_top_k(top_k: int) -> None:
    if top_k < 1:
        raise DataError("`top_k` is too small", given=top_k, expected="at least 1", do="set `top_k` to 1 or more")
