"""Correlation coefficients.

Shapes: N pairs.
"""

import math

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


def pearson(one_N: Values, other_N: Values) -> float:
    """Return the linear correlation; NaN if the values of either side are constant."""
    with np.errstate(invalid="ignore", divide="ignore"):
        one_N, other_N = one_N - one_N.mean(), other_N - other_N.mean()
        lengths = math.sqrt(float(one_N @ one_N)) * math.sqrt(float(other_N @ other_N))
    return math.nan if lengths == 0 else float(np.clip(one_N @ other_N / lengths, -1.0, 1.0))


def spearman(one_N: Values, other_N: Values) -> float:
    """Return the correlation of ranks; ties share the mean of their ranks. NaN if the values of either side are
    constant.
    """
    if one_N.min() == one_N.max() or other_N.min() == other_N.max():
        return math.nan
    return pearson(ranks(one_N), ranks(other_N))


def ranks(values_N: Values) -> Values:
    """Return ranks from 1, the smallest value first; ties share the mean of their ranks."""
    _, place_N, num_equal = np.unique(values_N, return_inverse=True, return_counts=True)
    last = np.cumsum(num_equal)
    mean: Values = last - (num_equal - 1) / 2
    return mean[place_N]
