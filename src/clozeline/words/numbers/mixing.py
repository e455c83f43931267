"""Mixing of bits: every output bit depends on every input bit."""

import numpy as np
from numpy.typing import NDArray


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's finalizer of each value (Steele, Lea, Flood 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
