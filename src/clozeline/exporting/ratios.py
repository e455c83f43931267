"""Shares and ratios over texts, with their intervals.

T texts.
"""

import math

import numpy as np
import numpy.typing as npt

from clozeline.inference.evidence import Measured

_NORMAL_QUANTILE_95 = 1.959963984540054


def ratio(parts_T: npt.NDArray[np.int64], wholes_T: npt.NDArray[np.int64], num_items: int) -> Measured:
    """Sum of `parts_T` over sum of `wholes_T`, both counts of each text, with a 95 % interval.

    Texts, not the masks in them, are what is drawn, so the interval is that of a ratio estimate (Cochran 1977,
    Sampling Techniques, section 6.3). Where no text differs from the ratio it is as wide as if one answer did. A ratio
    to nothing is 0: nothing speaks for it.
    """
    whole = int(wholes_T.sum())
    if whole == 0:
        return Measured(value=0.0, low=0.0, high=0.0, num_items=num_items)
    value = int(parts_T.sum()) / whole
    squares = max(float(np.square(parts_T - value * wholes_T).sum()), 1.0)
    num_texts = len(parts_T)
    half = _NORMAL_QUANTILE_95 * math.sqrt(squares * num_texts / max(num_texts - 1, 1)) / whole
    return Measured(value=value, low=max(value - half, 0.0), high=value + half, num_items=num_items)


def share(holds_A: npt.NDArray[np.bool_], text_A: npt.NDArray[np.int64]) -> Measured:
    """Of the answers, how many it holds for; `text_A` says which text each belongs to."""
    measured = ratio(per_text(holds_A, text_A), np.bincount(text_A), len(holds_A))
    return measured.model_copy(update={"high": min(measured.high, 1.0)})


def per_text(holds_A: npt.NDArray[np.bool_], text_A: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many answers of each text it holds for: [T]."""
    return np.bincount(text_A[holds_A], minlength=int(text_A.max()) + 1)
