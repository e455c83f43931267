"""Logits to probabilities and the best of them."""

import numpy as np
import numpy.typing as npt

from clozeline.errors import DataError


def softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Probabilities along the last axis, in float64; stable for logits of any size."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    probabilities: npt.NDArray[np.float64] = shifted / shifted.sum(axis=-1, keepdims=True)
    return probabilities


def top(scores: npt.NDArray[np.float64], top_k: int) -> list[int]:
    """Places of the `top_k` largest scores (all, if there are fewer), best first; of equal ones the first."""
    top_k = min(top_k, len(scores))
    threshold = np.partition(scores, -top_k)[-top_k]
    places = np.flatnonzero(scores >= threshold)
    order = np.argsort(-scores[places], kind="stable")[:top_k]
    return [int(place) for place in places[order]]


def check_top_k(top_k: int) -> None:
    if top_k < 1:
        raise DataError(
            "`top_k` cannot be used", given=top_k, expected="at least 1", do="ask for one answer or more for each text"
        )
