"""Claim: the most frequent words are found with their counts, and a trainer sees each as often as it occurs."""

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.tokenizing import frequent_words
from clozeline.tokenizing.frequent_words import FrequentWords, count_words
from clozeline.words.as_bytes.cutting import ByteClasses

CUT = ByteClasses.of(blanks=" ", alone=".").cut
batches = st.lists(st.lists(st.text("ab é.", max_size=12), max_size=4), max_size=5)


def by_hand(batches: list[list[str]]) -> list[tuple[str, int]]:
    counts = Counter(chain.from_iterable(text.replace(".", " . ").split() for text in chain.from_iterable(batches)))
    return sorted(counts.items(), key=lambda item: (-item[1], item[0].encode()))


def as_pairs(found: FrequentWords) -> list[tuple[str, int]]:
    return list(zip(found.words, found.count_U.tolist(), strict=True))


@given(batches=batches, most=st.integers(1, 5))
@settings(deadline=None)
def test_the_requested_number_of_words_comes_most_frequent_first(batches: list[list[str]], most: int) -> None:
    assert as_pairs(count_words(batches, CUT, most)) == by_hand(batches)[:most]


def test_rare_words_are_dropped_while_counting_and_frequent_ones_counted_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frequent_words, "_MOST_COUNTED", 4)
    batches = [[f"the cat the mat odd{number}"] for number in range(50)]
    assert as_pairs(count_words(batches, CUT, 3)) == [("the", 100), ("cat", 50), ("mat", 50)]


@given(batches)
@settings(deadline=None)
def test_texts_for_a_trainer_hold_each_word_as_often_as_it_occurs(batches: list[list[str]]) -> None:
    found = count_words(batches, CUT)
    shown = Counter(" ".join(chain.from_iterable(found.as_texts())).split())
    assert shown == dict(as_pairs(found))


def test_texts_for_a_trainer_are_short_and_come_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frequent_words, "_CHARACTERS_A_TEXT", 10)
    monkeypatch.setattr(frequent_words, "_TEXTS_A_BATCH", 2)
    found = count_words([["word " * 5 + "longer than a text"]], CUT)
    shown = list(found.as_texts())
    assert max(map(len, shown)) == 2
    assert all(len(text) <= 10 for batch in shown for text in batch)
