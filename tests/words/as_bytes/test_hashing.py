"""Claim: a word's hash depends only on its bytes, and different words get different 64-bit hashes."""

from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.records.words.bytes import word_hashes
from clozeline.records.words.numbers import mixed

BASE = 0x9E3779B97F4A7C15


def by_hand(word: str) -> int:
    powers = [(byte + 1) * BASE ** (place + 1) for place, byte in enumerate(word.encode())]
    return int(mixed(np.array([sum(powers) % 2**64], np.uint64))[0])


@given(st.lists(st.text(max_size=12), max_size=6))
def test_a_hash_is_a_polynomial_of_the_bytes(words: list[str]) -> None:
    assert word_hashes(pa.array(words, pa.string())).tolist() == [by_hand(word) for word in words]


@pytest.mark.parametrize(("start", "length"), [(0, 3), (2, 4), (5, 0)])
def test_a_slice_of_a_column_is_hashed_like_a_column_of_its_own(start: int, length: int) -> None:
    words = ["", "a", "aa", "\x00", "é", "tensor", "", "東"]
    part = pa.array(words).slice(start, length)
    assert word_hashes(part).tolist() == word_hashes(pa.array(part.to_pylist(), pa.string())).tolist()


def test_similar_words_have_different_hashes() -> None:
    words = ["".join(letters) for length in range(5) for letters in product("\x00abzAZ09_", repeat=length)]
    hashes = word_hashes(pa.array(words))
    assert len(np.unique(hashes)) == len(words)
    assert len(np.unique(hashes >> np.uint64(40))) > 0.99 * len(words)


def test_changing_one_letter_flips_half_of_the_hash_bits() -> None:
    one, other = (word_hashes(pa.array([f"{letter}{number}" for number in range(2000)])) for letter in "ab")
    changed = np.unpackbits((one ^ other).view(np.uint8)).mean()
    assert 0.49 < changed < 0.51
