"""Arithmetic on arrays of integers: bits mixed so that each depends on all, and runs of consecutive numbers.

A run is given by its start and its length. Shapes: R runs.
"""

import numpy as np
from numpy.typing import NDArray

IndexArray = NDArray[np.int32] | NDArray[np.int64] | NDArray[np.uint64]


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's finalizer of each value (Steele, Lea, Flood 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def run_positions(starts_R: IndexArray, lengths_R: IndexArray) -> NDArray[np.int64]:
    """Return every number of every run, in order: int64 [sum of lengths]."""
    starts_R, lengths_R = starts_R.astype(np.int64), lengths_R.astype(np.int64)
    ends_R = np.cumsum(lengths_R)
    before_R = ends_R - lengths_R
    total = int(ends_R[-1]) if len(ends_R) else 0
    return np.repeat(starts_R - before_R, lengths_R) + np.arange(total, dtype=np.int64)
