"""Hashes of many words at once, by their bytes: no Python object for a word, and nothing to remember.

Shapes: U words, Y bytes of all of them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.byte_words import text_bytes

_BASE = np.uint64(0x9E3779B97F4A7C15)


def word_hashes(words_U: Any) -> NDArray[np.uint64]:
    """64 bits of each string of an Arrow array: a polynomial in its bytes modulo 2^64, mixed.

    Of two words chosen for it the hashes can be equal: what must be right compares the words too.
    """
    offsets_U, content = text_bytes(words_U)
    lengths_U = np.diff(offsets_U)
    powers = np.cumprod(np.full(int(lengths_U.max(initial=0)), _BASE))
    place_Y = np.arange(len(content)) - np.repeat(offsets_U[:-1], lengths_U)
    terms_Y = (np.frombuffer(content, np.uint8).astype(np.uint64) + np.uint64(1)) * powers[place_Y]
    sums_Y = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms_Y)])
    return mixed(sums_Y[offsets_U[1:]] - sums_Y[offsets_U[:-1]])


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finalizer (Steele, Lea, Flood 2014): every bit of the input reaches every bit of the output."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
