"""Runs of numbers, each given by where it starts and how long it is.

Shapes: S spans, N numbers in all of them.
"""

import numpy as np
import numpy.typing as npt

IndexArray = npt.NDArray[np.int32] | npt.NDArray[np.int64] | npt.NDArray[np.uint64]


def span_positions(starts_S: IndexArray, lengths_S: IndexArray) -> npt.NDArray[np.int64]:
    """Every position of every span, in order: int64 [sum of lengths]."""
    starts_S, lengths_S = starts_S.astype(np.int64), lengths_S.astype(np.int64)
    ends_S = np.cumsum(lengths_S)
    before_S = ends_S - lengths_S
    num_tokens = int(ends_S[-1]) if len(ends_S) else 0
    return np.repeat(starts_S - before_S, lengths_S) + np.arange(num_tokens, dtype=np.int64)
