"""Claim: the same text gives the same vocabulary in any process, with the special tokens always there."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from clozeline.params.text import TokenizeParams
from clozeline.system.errors import DataError
from clozeline.tokenizing.vocabularies import Lattice, learn, learn_scores
from clozeline.tokenizing.words import CountedTexts
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
    with pytest.raises(DataError, match="holds no text"):
        learn(params, [MadeTexts(["", " \n "])])


PROBABILITY = {"a": 0.2, "b": 0.15, "c": 0.05, "ab": 0.3, "bc": 0.1, "abc": 0.1, "ca": 0.1}
WORDS = ["abc", "a", "cabab", "abcabc", "bcx"]
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
    for word, count in zip(WORDS, COUNTS, strict=True):
        total = sum(map(probability, cuts(word)))
        for pieces in cuts(word):
            for piece in pieces:
                expected[piece] += count * probability(pieces) / total
    lattice = Lattice.build(WORDS, {piece: ordinal for ordinal, piece in enumerate(PROBABILITY)})
    found = lattice.expected_counts(np.array(list(PROBABILITY.values())), COUNTS)
    np.testing.assert_allclose(found, list(expected.values()), rtol=1e-12)
    best = [max(map(probability, cuts(word)), default=0.0) for word in WORDS]
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
