"""Claim: the same text gives the same vocabulary in any process, with the special tokens always there.
The most frequent words are found with their exact counts, and a trainer sees each as often as it occurs.
"""

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from clozeline.params.text import TokenizeParams
from clozeline.system.errors import DataError
from clozeline.tokenizing import vocabularies, words
from clozeline.tokenizing.vocabularies import Lattice, learn, learn_scores
from clozeline.tokenizing.words import (
    NUM_CODE_POINTS,
    WORDS,
    CountedTexts,
    FrequentWords,
    add_characters,
    count_bucket,
    count_partition,
    merged,
)
from tests.make.texts import ALGORITHMS
from tests.tokenizing.conftest import MadeTexts, tokenize_params

_LEARN_ELSEWHERE = """
import json, sys
from types import SimpleNamespace
from clozeline.params.text import TokenizeParams
from clozeline.tokenizing.vocabularies import learn
every, texts = json.load(sys.stdin)
counted = SimpleNamespace(digest="", reads=(), texts=lambda: iter([texts]))
print(*(json.dumps(learn(TokenizeParams.model_validate(params), [counted]).to_str()) for params in every), sep="\\n")
"""


def test_a_vocabulary_does_not_depend_on_process_or_threads(partitions: list[CountedTexts], texts: list[str]) -> None:
    every = [tokenize_params(algorithm=algorithm) for algorithm in ALGORITHMS]
    elsewhere = subprocess.run(
        [sys.executable, "-c", _LEARN_ELSEWHERE],
        input=json.dumps([[params.model_dump() for params in every], texts]),
        env=os.environ | {"RAYON_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = list(map(json.loads, elsewhere.stdout.splitlines()))
    assert found == [learn(params, partitions).to_str() for params in every]


def test_a_vocabulary_has_the_requested_size_and_special_tokens_which_texts_get(params, partitions) -> None:
    """They have the first ids. A mask in a query is the mask token."""
    tokenizer = learn(params, partitions)
    assert sorted(tokenizer.get_vocab(with_added_tokens=True).values()) == list(range(params.vocab_size))
    assert [tokenizer.id_to_token(id_) for id_ in range(5)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert sorted(tokenizer.get_added_tokens_decoder()) == [0, 1, 2, 3, 4]
    single, pair = tokenizer.encode("kato [MASK] mire"), tokenizer.encode("kato", "mire")
    assert (single.ids[0], single.ids[-1], single.ids.count(4)) == (2, 3, 1)
    assert (pair.ids.count(2), pair.ids.count(3)) == (1, 2)
    assert tokenizer.decode(tokenizer.encode("kato mire sulon").ids) == "kato mire sulon"


def test_cased_and_lowercased_vocabularies_differ(params: TokenizeParams, partitions: list[CountedTexts]) -> None:
    for lowercase in (True, False):
        found = learn(params.model_copy(update={"lowercase": lowercase}), partitions)
        assert (found.encode("Kato").ids == found.encode("kato").ids) is lowercase


def test_a_short_text_gets_the_largest_vocabulary_that_it_supports(params, partitions, caplog) -> None:
    caplog.set_level("INFO")
    largest = learn(params.model_copy(update={"vocab_size": 200_000}), partitions)
    size = largest.get_vocab_size()
    assert f"{size:,} entries, not 200,000" in caplog.text
    asked = learn(params.model_copy(update={"vocab_size": size}), partitions)
    assert asked.get_vocab() == largest.get_vocab()
    with pytest.raises(DataError, match="has no text"):
        learn(params, [MadeTexts(["", " \n "])])


PROBABILITY = {"a": 0.2, "b": 0.15, "c": 0.05, "ab": 0.3, "bc": 0.1, "abc": 0.1, "ca": 0.1}
SPELLED = ["abc", "a", "cabab", "abcabc", "bcx"]
COUNTS = np.array([3, 1, 2, 5, 7])


def cuts(word: str) -> Iterator[list[str]]:
    """Return every way to cut `word` into known pieces."""
    if not word:
        yield []
    for end in range(1, len(word) + 1):
        if word[:end] in PROBABILITY:
            yield from ([word[:end], *rest] for rest in cuts(word[end:]))


def probability(pieces: Sequence[str]) -> float:
    return math.prod(PROBABILITY[piece] for piece in pieces)


def test_counts_and_the_best_probability_are_those_of_all_segmentations() -> None:
    """A word that pieces cannot cover adds nothing."""
    expected = dict.fromkeys(PROBABILITY, 0.0)
    for word, count in zip(SPELLED, COUNTS, strict=True):
        total = sum(map(probability, cuts(word)))
        for pieces in cuts(word):
            for piece in pieces:
                expected[piece] += count * probability(pieces) / total
    lattice = Lattice.build(SPELLED, {piece: ordinal for ordinal, piece in enumerate(PROBABILITY)})
    found = lattice.expected_counts(np.array(list(PROBABILITY.values())), COUNTS)
    np.testing.assert_allclose(found, list(expected.values()), rtol=1e-12)
    best = [max(map(probability, cuts(word)), default=0.0) for word in SPELLED]
    found = lattice.best_log_probability(np.log(list(PROBABILITY.values())))
    np.testing.assert_allclose(np.exp(found), best, rtol=1e-12)


def test_frequent_words_stay_whole_and_characters_are_never_lost() -> None:
    """Scores are log-probabilities, the highest first; the order of words and candidates changes nothing."""
    counts = {"▁the": 1000, "▁then": 10, "▁hen": 300, "▁ten": 5, "▁net": 1}
    candidates = sorted(
        {word[start:end] for word in counts for start in range(5) for end in range(start + 1, 6)} - {""}
    )
    scores = learn_scores(counts, candidates, 8)
    assert len(scores) == 8
    assert learn_scores(dict(reversed(counts.items())), candidates[::-1], 8) == scores
    assert {"▁", "t", "h", "e", "n", "▁the", "▁hen"} <= set(scores)
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    whole = learn_scores({"▁ab": 4, "▁a": 6}, ["▁", "a", "b", "▁a", "▁ab"], 5)
    assert sum(math.exp(score) for score in whole.values()) == pytest.approx(1, abs=1e-5)


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
    for _ in range(2):
        add_characters(tmp_path, counts)
    assert {chr(place): int(counts[place]) for place in np.flatnonzero(counts)} == {"a": 4, "é": 2, "東": 2}


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


@pytest.mark.parametrize("params", ["wordpiece", "unigram"], indirect=True)
def test_training_on_word_counts_gives_the_same_vocabulary_as_on_texts(params, partitions, texts, monkeypatch) -> None:
    by_words = learn(params, partitions).to_str()

    def train_on_texts(tokenizer: Tokenizer, _: object, trainer: trainers.Trainer) -> None:
        rules = vocabularies.ALGORITHMS[params.algorithm].untrained(params)
        tokenizer.normalizer, tokenizer.pre_tokenizer = rules.normalizer, rules.pre_tokenizer
        tokenizer.train_from_iterator(texts, trainer)

    monkeypatch.setattr(vocabularies, "_train_on_words", train_on_texts)
    assert learn(params, partitions).to_str() == by_words
