"""Confidence intervals of figures over other items of the same kind.

Shapes: N items, S samples.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.record import Record

_NORMAL_QUANTILE_95 = 1.959963984540054
"""0.975 quantile of the normal distribution, for a two-sided interval of 95 %."""
_NUM_SAMPLES = 1000
_SEED = 0


class Range(Record):
    """Ends of a 95 % interval, in a record."""

    low: float
    high: float


Figure = Callable[[npt.NDArray[np.int64]], float]
"""Function: indices of items → the figure on them."""


def wilson_interval(num_hits: int, num_trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927); unlike ±1.96 standard errors it holds near 0 and 1."""
    z2 = _NORMAL_QUANTILE_95**2
    share = num_hits / num_trials
    middle = (share + z2 / (2 * num_trials)) / (1 + z2 / num_trials)
    half = math.sqrt(share * (1 - share) / num_trials + z2 / (4 * num_trials**2)) / (1 + z2 / num_trials)
    half *= _NORMAL_QUANTILE_95
    return max(middle - half, 0.0), min(middle + half, 1.0)


def paired_interval(ours: Figure, baseline: Figure, num_items: int) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two figures (`ours` - `baseline`) on the same items."""
    return bootstrap_interval(lambda places_N: ours(places_N) - baseline(places_N), num_items)


def bootstrap_interval(figure: Figure, num_items: int) -> tuple[float, float]:
    """Return the 95 % interval by the percentile bootstrap (Efron 1979), for a figure that is not a share, such as F1.

    Args:
        figure: indices of items, drawn with replacement → the figure on them. Samples on which it is NaN (the
            correlation of constant values) are left out.
    """
    random = np.random.default_rng(_SEED)
    values_S = np.array([figure(random.integers(num_items, size=num_items)) for _ in range(_NUM_SAMPLES)])
    values_S = values_S[np.isfinite(values_S)]
    if len(values_S) == 0:
        return math.nan, math.nan
    low, high = np.quantile(values_S, (0.025, 0.975))
    return float(low), float(high)
