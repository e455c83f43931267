"""Claim: the most frequent words are found with their exact counts, and a trainer sees each as often as it occurs."""

from collections import Counter
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from clozeline.tokenizing import words
from clozeline.tokenizing.words import (
    NUM_CODE_POINTS,
    WORDS,
    FrequentWords,
    add_characters,
    count_bucket,
    count_partition,
    merged,
)
from tests.tokenizing.conftest import MadeTexts

CUTS_AT_PUNCTUATION = Tokenizer(models.WordPiece(unk_token="[UNK]"))
CUTS_AT_PUNCTUATION.normalizer = normalizers.BertNormalizer()
CUTS_AT_PUNCTUATION.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
partitions = st.lists(st.lists(st.lists(st.text("ab é.", max_size=12), max_size=4), max_size=3), max_size=4)


def by_hand(partitions: list[list[list[str]]]) -> list[tuple[str, int]]:
    texts = chain.from_iterable(chain.from_iterable(partitions))
    counts = Counter(chain.from_iterable(text.replace(".", " . ").split() for text in texts))
    return sorted(counts.items(), key=lambda item: (-item[1], item[0].encode()))


def counted(partitions: list[list[list[str]]], most_words: int, num_buckets: int = 1) -> FrequentWords:
    with TemporaryDirectory() as name:

        def new_folder(kind: str, number: int) -> Path:
            (Path(name) / f"{kind} {number}").mkdir()
            return Path(name) / f"{kind} {number}"

        counts = [new_folder("partition", number) for number in range(len(partitions))]
        sums = [new_folder("bucket", number) for number in range(num_buckets)]
        for batches, folder in zip(partitions, counts, strict=True):
            texts = MadeTexts(list(chain.from_iterable(batches)))
            count_partition(texts, CUTS_AT_PUNCTUATION, num_buckets, folder)
        for bucket, folder in enumerate(sums):
            count_bucket([partition / WORDS for partition in counts], bucket, most_words, folder)
        return merged(sums, most_words)


def test_characters_are_counted(tmp_path: Path) -> None:
    count_partition(MadeTexts(["aé", "a", "東"]), CUTS_AT_PUNCTUATION, 1, tmp_path)
    counts = np.zeros(NUM_CODE_POINTS, np.int64)
    add_characters(tmp_path, counts)
    assert {chr(place): int(counts[place]) for place in np.flatnonzero(counts)} == {"a": 2, "é": 1, "東": 1}


def as_pairs(found: FrequentWords) -> list[tuple[str, int]]:
    return list(zip(found.words, found.count_U.tolist(), strict=True))


@given(partitions=partitions, most=st.integers(1, 5), num_buckets=st.integers(1, 4))
@settings(deadline=None, max_examples=40)
def test_the_requested_number_of_words_comes_most_frequent_first(partitions, most, num_buckets) -> None:
    """A text for a trainer holds each as often as it occurs."""
    found = counted(partitions, most, num_buckets)
    assert as_pairs(found) == by_hand(partitions)[:most]
    assert Counter(" ".join(chain.from_iterable(found.as_texts())).split()) == dict(as_pairs(found))


def test_words_that_are_rare_at_first_are_counted_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_MOST_ROWS", 4)
    batches = [[f"the cat odd{number}"] for number in range(50)] + [["odd7 " * 60, "zz " * 55]]
    assert as_pairs(counted([batches[:20], batches[20:]], 4, 3)) == [("odd7", 61), ("zz", 55), ("cat", 50), ("the", 50)]
