"""Hashes of many words at once, from their bytes, without a Python object for each word or a table.

Shapes: U words, Y bytes of all of them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.words.as_bytes.cutting import text_bytes
from clozeline.words.numbers.mixing import mixed

_BASE = np.uint64(0x9E3779B97F4A7C15)


def word_hashes(words_U: Any) -> NDArray[np.uint64]:
    """Return 64 bits for each string of an Arrow array: a polynomial in its bytes modulo 2^64, mixed.

    Words can be constructed to collide: a caller that needs certainty has to compare the words too.
    """
    offsets_U, content = text_bytes(words_U)
    lengths_U = np.diff(offsets_U)
    powers = np.cumprod(np.full(int(lengths_U.max(initial=0)), _BASE))
    place_Y = np.arange(len(content)) - np.repeat(offsets_U[:-1], lengths_U)
    terms_Y = (np.frombuffer(content, np.uint8).astype(np.uint64) + np.uint64(1)) * powers[place_Y]
    sums_Y = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms_Y)])
    return mixed(sums_Y[offsets_U[1:]] - sums_Y[offsets_U[:-1]])
