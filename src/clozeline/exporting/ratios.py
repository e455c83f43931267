"""Shares and ratios over texts, with their intervals.

A answers, T texts.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.evidence import Measured

_NORMAL_QUANTILE_95 = 1.959963984540054


Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """A figure as a ratio of two sums over texts: right answers over all, or for an F1 twice the right ones over those
    that were given and those that are right.
    """

    part_T: Numbers
    whole_T: Numbers

    @property
    def value(self) -> float:
        """0 where there is nothing to be right about."""
        whole = float(self.whole_T.sum())
        return float(self.part_T.sum()) / whole if whole else 0.0


def ratio_of_figures(ours: Counts, theirs: Counts, num_items: int) -> Measured:
    """Our figure over theirs on the same texts, with a 95 % interval as of `ratio`.

    Where the wholes differ too, as those of an F1 do, both figures are made linear (the same section, of a ratio of two
    ratios); a ratio to nothing is 0.
    """
    if (ours.whole_T == theirs.whole_T).all():
        return ratio(ours.part_T, theirs.part_T, num_items)
    num_counted = int(np.count_nonzero(ours.whole_T + theirs.whole_T))
    if not ours.value or not theirs.value:
        return Measured(value=0.0, low=0.0, high=0.0, num_items=num_items, num_texts=num_counted)
    value = ours.value / theirs.value
    moved_T = (ours.part_T - ours.value * ours.whole_T) / ours.part_T.sum()
    moved_T = moved_T - (theirs.part_T - theirs.value * theirs.whole_T) / theirs.part_T.sum()
    squares = max(float(np.square(moved_T).sum()), float(theirs.part_T.sum()) ** -2)
    num_texts = len(moved_T)
    half = _NORMAL_QUANTILE_95 * value * math.sqrt(squares * num_texts / max(num_texts - 1, 1))
    low, high = max(value - half, 0.0), value + half
    return Measured(value=value, low=low, high=high, num_items=num_items, num_texts=num_counted)


def ratio(parts_T: Numbers, wholes_T: Numbers, num_items: int) -> Measured:
    """Sum of `parts_T` over sum of `wholes_T`, both counts of each text, with a 95 % interval.

    Texts, not the masks in them, are what is drawn, so the interval is that of a ratio estimate (Cochran 1977,
    Sampling Techniques, section 6.3). Where no text differs from the ratio it is as wide as if one answer did. A ratio
    to nothing is 0: nothing speaks for it.
    """
    whole, num_counted = float(wholes_T.sum()), int(np.count_nonzero(wholes_T))
    if whole == 0:
        return Measured(value=0.0, low=0.0, high=0.0, num_items=num_items, num_texts=num_counted)
    value = float(parts_T.sum()) / whole
    squares = max(float(np.square(parts_T - value * wholes_T).sum()), 1.0)
    num_texts = len(parts_T)
    half = _NORMAL_QUANTILE_95 * math.sqrt(squares * num_texts / max(num_texts - 1, 1)) / whole
    low, high = max(value - half, 0.0), value + half
    return Measured(value=value, low=low, high=high, num_items=num_items, num_texts=num_counted)


def share(holds_A: npt.NDArray[np.bool_], text_A: npt.NDArray[np.int64]) -> Measured:
    """Of the answers, how many it holds for; `text_A` says which text each belongs to."""
    measured = ratio(per_text(holds_A, text_A), np.bincount(text_A), len(holds_A))
    return measured.model_copy(update={"high": min(measured.high, 1.0)})


def per_text(holds_A: npt.NDArray[np.bool_], text_A: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many answers of each text it holds for: [T]."""
    return np.bincount(text_A[holds_A], minlength=int(text_A.max(initial=-1)) + 1)
