"""Random bits of a token, derived from its identity (document, position).

Shapes: N tokens.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from clozeline.records.words.numbers import mixed
from clozeline.system.errors import ParamsError

Ids = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Flags = NDArray[np.bool_]
Uniforms = NDArray[np.float64]

_UNIT = 2.0**-24
_SECOND_24_BITS = np.uint64(24)
_END_OF_SEEDS = 2**63


def check_seed(seed: int) -> None:
    """Check that bits can be made from `seed`.

    Raises:
        ParamsError: `seed` is out of range.
    """
    if not 0 <= seed < _END_OF_SEEDS:
        raise ParamsError(f"the seed is {seed}, which is not within 0 to 2^63 - 1", do="choose another seed")


class Stream(IntEnum):
    """Independent draws for the same token."""

    TARGET = 1
    FOLD = 2
    SPAN = 3
    WORD_DROPOUT = 4
    REPLACEMENT = 5
    REPLAY = 6
    TEXT_DROPOUT = 7


def token_hashes(seed: int, epoch: int, stream: Stream, document_N: Ids, position_N: Ids) -> Hashes:
    """Return 64 well-mixed bits for each token: SplitMix64 (Steele et al. 2014, "Fast splittable generators", fig. 13).

    The shapes of the two arrays have to broadcast.
    """
    key = np.zeros(1, dtype=np.uint64)
    for part in (seed, epoch, stream):
        key = mixed(key + np.uint64(part))
    return mixed(mixed(document_N.astype(np.uint64) + key[0]) + position_N.astype(np.uint64))


def first_uniform(hashes: Hashes) -> Uniforms:
    """Return uniform numbers in [0, 1) from bits 0 to 23."""
    return (hashes & np.uint64(0xFFFFFF)).astype(np.float64) * _UNIT


def second_uniform(hashes: Hashes) -> Uniforms:
    """Return uniform numbers in [0, 1) from bits 24 to 47, independent of the first."""
    return first_uniform(hashes >> _SECOND_24_BITS)


def fine_uniform(hashes: Hashes) -> Uniforms:
    """Return uniform numbers in [0, 1) from bits 11 to 63: fine enough to find a rare token among many."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53


def follows(row_N: Ids, position_N: Ids) -> Flags:
    """Return whether the preceding token of the array also precedes it in the row."""
    follows_N = np.zeros(len(row_N), dtype=bool)
    follows_N[1:] = (row_N[1:] == row_N[:-1]) & (position_N[1:] == position_N[:-1] + 1)
    return follows_N
