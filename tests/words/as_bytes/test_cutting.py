"""Claim: cutting by bytes gives the words that a regular expression finds in each text."""

import re

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.records.words.bytes import ByteClasses, CutTexts

CLASSES = ByteClasses.of(blanks=" \n", alone="(.", replaced={"A": "a"})
WORDS = re.compile(r"[^ \n(.]+|[(.]")
odd_texts = st.lists(st.text(st.sampled_from("aAb1 \n(.é東\x00\U0001f600"), max_size=12), max_size=6)


def words_of(cut: CutTexts) -> list[list[str]]:
    """Return the words of each text."""
    spelled = iter(np.array(cut.distinct_U.to_pylist(), dtype=object)[cut.index_W].tolist())
    return [[next(spelled) for _ in range(number)] for number in cut.num_words_D]


def words_in(text: str) -> list[str]:
    return [word.replace("A", "a") for word in WORDS.findall(text)]


@given(odd_texts)
@settings(deadline=None)
def test_words_equal_those_of_the_regular_expression(texts: list[str]) -> None:
    assert words_of(CLASSES.cut(pa.array(texts, pa.string()))) == [words_in(text) for text in texts]


@given(odd_texts, st.integers(0, 6), st.integers(0, 6))
@settings(deadline=None)
def test_a_slice_of_a_column_is_cut_like_a_column_of_its_own(texts: list[str], start: int, length: int) -> None:
    part = pa.array(texts, pa.string()).slice(min(start, len(texts)), length)
    assert words_of(CLASSES.cut(part)) == [words_in(text) for text in part.to_pylist()]


@given(odd_texts)
@settings(deadline=None)
def test_each_distinct_word_is_stored_once(texts: list[str]) -> None:
    distinct = CLASSES.cut(pa.array(texts, pa.string())).distinct_U.to_pylist()
    assert len(distinct) == len(set(distinct))


def test_a_text_marked_as_whole_is_one_word() -> None:
    cut = CLASSES.cut(pa.array(["a b", "a (b", ""]), np.array([False, True, True]))
    assert words_of(cut) == [["a", "b"], ["a (b"], []]


def test_wide_strings_are_cut_like_others() -> None:
    assert words_of(CLASSES.cut(pa.array(["a b"], pa.large_string()))) == [["a", "b"]]
