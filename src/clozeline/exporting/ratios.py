"""Shares and ratios over texts, with 95 % intervals.

Shapes: A answers, T texts.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.export.evidence import Measured

_NORMAL_QUANTILE_95 = 1.959963984540054


Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """A figure as the ratio of two sums over texts.

    Accuracy: right answers / all answers. F1: twice the right given answers / (given answers + right answers).
    """

    part_T: Numbers
    whole_T: Numbers

    @property
    def value(self) -> float:
        """The figure; 0 if `whole_T` is all 0."""
        whole = float(self.whole_T.sum())
        return float(self.part_T.sum()) / whole if whole else 0.0


def ratio_of_figures(ours: Counts, theirs: Counts, num_items: int) -> Measured:
    """Return our figure / their figure on the same texts, with a 95 % interval as in `ratio`.

    If the wholes differ too, as for an F1, both figures are linearized (ratio of two ratios, same section of Cochran).
    The result is 0 if either figure is 0.
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
    """Return sum of `parts_T` / sum of `wholes_T`, both one count per text, with a 95 % interval.

    The sampled units are texts, not their masks, so the interval is that of a ratio estimate (Cochran 1977, Sampling
    Techniques, section 6.3). If no text deviates from the ratio, the interval is as wide as if one answer did. The
    result is 0 if the sum of `wholes_T` is 0.
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
    """Return the share of answers with `holds_A`; `text_A` is the text of each answer."""
    measured = ratio(per_text(holds_A, text_A), np.bincount(text_A), len(holds_A))
    return measured.model_copy(update={"high": min(measured.high, 1.0)})


def per_text(holds_A: npt.NDArray[np.bool_], text_A: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of answers with `holds_A` in each text: [T]."""
    return np.bincount(text_A[holds_A], minlength=int(text_A.max(initial=-1)) + 1)
