"""Claim: cutting by bytes gives the words that a regular expression finds in each text."""

import re
from itertools import product

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.records.words.bytes import ByteClasses, CutTexts, word_hashes
from clozeline.records.words.numbers import mixed, run_positions

CLASSES = ByteClasses.of(blanks=" \n", alone="(.", replaced={"A": "a"})
WORDS = re.compile(r"[^ \n(.]+|[(.]")
odd_texts = st.lists(st.text(st.sampled_from("aAb1 \n(.é東\x00\U0001f600"), max_size=12), max_size=6)


def words_of(cut: CutTexts) -> list[list[str]]:
    """Return the words of each text."""
    spelled = iter(np.array(cut.distinct_U.to_pylist(), dtype=object)[cut.index_W].tolist())
    return [[next(spelled) for _ in range(number)] for number in cut.num_words_D]


def words_in(text: str) -> list[str]:
    return [word.replace("A", "a") for word in WORDS.findall(text)]


@given(odd_texts, st.integers(0, 6), st.integers(0, 6))
@settings(deadline=None)
def test_a_slice_of_a_column_is_cut_like_a_column_of_its_own(texts: list[str], start: int, length: int) -> None:
    part = pa.array(texts, pa.string()).slice(min(start, len(texts)), length)
    cut = CLASSES.cut(part)
    assert words_of(cut) == [words_in(text) for text in part.to_pylist()]
    distinct = cut.distinct_U.to_pylist()
    assert len(distinct) == len(set(distinct)), "each is stored once"


def test_a_text_marked_as_whole_is_one_word_and_wide_strings_are_cut_like_others() -> None:
    for kind in (pa.string(), pa.large_string()):
        cut = CLASSES.cut(pa.array(["a b", "a (b", ""], kind), np.array([False, True, True]))
        assert words_of(cut) == [["a", "b"], ["a (b"], []]


BASE = 0x9E3779B97F4A7C15


def by_hand(word: str) -> int:
    powers = [(byte + 1) * BASE ** (place + 1) for place, byte in enumerate(word.encode())]
    return int(mixed(np.array([sum(powers) % 2**64], np.uint64))[0])


@given(st.lists(st.text(max_size=12), max_size=6), st.integers(0, 2))
@settings(deadline=None)
def test_a_hash_is_a_polynomial_of_the_bytes_also_in_a_slice_of_a_column(words: list[str], start: int) -> None:
    part = pa.array(words, pa.string())[start:]
    assert word_hashes(part).tolist() == [by_hand(word) for word in words[start:]]


def test_similar_words_have_different_hashes() -> None:
    words = ["".join(letters) for length in range(5) for letters in product("\x00abzAZ09_", repeat=length)]
    hashes = word_hashes(pa.array(words))
    assert len(np.unique(hashes)) == len(words)
    assert len(np.unique(hashes >> np.uint64(40))) > 0.99 * len(words)


def test_mixing_gives_the_published_outputs_of_splitmix64() -> None:
    """First outputs of splitmix64.c (Vigna 2015) for the seed 1234567; its state grows by a constant."""
    seeds = np.array([(1234567 + step * 0x9E3779B97F4A7C15) % 2**64 for step in range(3)], dtype=np.uint64)
    assert mixed(seeds).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_spans_keep_their_order_and_may_overlap() -> None:
    assert run_positions(np.array([5, 0, 4]), np.array([2, 0, 3])).tolist() == [5, 6, 4, 5, 6]
