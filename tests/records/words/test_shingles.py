"""Claim: a test text is counted exactly if a training text is its near-duplicate or contains it."""

import random
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.records.words import shingles
from clozeline.records.words.bytes import word_hashes
from clozeline.records.words.shingles import Banding, Contamination, ShingleSets, contamination

BANDING = Banding.finding(0.5)


def sketched(texts: list[str], banding: Banding = BANDING) -> ShingleSets:
    return shingles.shingle_sets(pa.array(texts, pa.string()), banding)


def one_hash(word: str) -> int:
    return int(word_hashes(pa.array([word]))[0])


def sets_of(texts: list[str]) -> list[set[int]]:
    found = sketched(texts)
    return [set(part.tolist()) for part in np.split(found.hashes_S, np.cumsum(found.counts_N)[:-1])]


def test_shingles_of_three_words_ignore_case_punctuation_and_repetition_but_not_order() -> None:
    one, other = sets_of(["The quick brown fox jumps", "the  QUICK, brown: fox\njumps!"])
    assert one == other
    assert len(one) == 3
    once, twice, turned = sets_of(["a b c", "a b c a b c a b c", "c b a"])
    assert once < twice
    assert len(twice) == 3
    assert not once & turned


def test_short_texts_scripts_without_spaces_and_lone_surrogates_have_shingles() -> None:
    for text in ("word", "two words", "!?"):
        same, other, short = sets_of([text, text + " x y z", text])
        assert len(short) == 1
        assert same == short
        assert same != other
    one, other = sets_of(["我喜欢吃苹果和香蕉", "我喜欢吃苹果和橘子"])
    assert len(one & other) == 5
    one, other = (shingles.plain_sets([text]).hashes_S.tolist() for text in ("one \ud83d two three", "one two three"))
    assert one == other, "a lone surrogate separates words"


@given(st.lists(st.text(alphabet=[*map(chr, range(128)), "é", "東"]), max_size=4))
@settings(deadline=None)
def test_words_equal_those_of_the_expression_for_all_scripts(texts: list[str]) -> None:
    hashed_W, num_words_N = shingles._hashed_words(pa.array(texts, pa.string()))
    words = [shingles._WORD.findall(text.casefold()) or [text] for text in texts]
    words = [found + [""] * (3 - len(found)) for found in words]
    assert num_words_N.tolist() == [len(found) for found in words]
    assert hashed_W.tolist() == [one_hash(word) for found in words for word in found]


def test_a_text_has_the_same_sketch_alone_and_in_a_batch(words) -> None:
    texts = [words(seed, 5 + seed * 7) for seed in range(30)]
    batch = sketched(texts)
    alone = [sketched([text]) for text in texts]
    for figure in ("hashes_S", "counts_N", "bands_NB"):
        np.testing.assert_array_equal(getattr(batch, figure), np.concatenate([getattr(one, figure) for one in alone]))


def test_sketches_are_the_same_in_every_process_and_release() -> None:
    """If this fails after an upgrade of rensa or numpy, every corpus changes: update the numbers knowingly."""
    found = sketched(["From raw text to your own encoder", "served on ordinary CPUs"])
    assert found.counts_N.tolist() == [5, 2]
    assert found.hashes_S[:2].tolist() == [832807666, 1221830764]
    assert found.bands_NB[:, 0].tolist() == [4697429212208348204, 17724351080919678700]


@pytest.mark.parametrize("similarity", [0.3, 0.5, 0.7, 0.8, 0.95])
def test_the_banding_is_the_most_selective_that_finds_97_percent(similarity: float) -> None:
    banding = Banding.finding(similarity)
    found = 1 - (1 - similarity**banding.num_rows) ** banding.num_bands
    assert found >= 0.97
    stricter = banding.num_rows + 1
    assert 1 - (1 - similarity**stricter) ** (128 // stricter) < 0.97
    assert Banding.finding(0.001) == Banding(num_bands=128, num_rows=1)


SENTENCE = "return a new array of the given shape and type filled with zeros unless the caller asks for something else"


def batches(texts: list[str], size: int = 3) -> Iterator[list[str]]:
    return (texts[start : start + size] for start in range(0, len(texts), size))


def word_triples(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[place : place + 3]) for place in range(len(words) - 2)}


def counted_one_by_one(test: list[str], training: list[str]) -> Contamination:
    near = contained = 0
    for text in test:
        ours = word_triples(text)
        shares = [(len(ours & theirs), len(ours | theirs)) for theirs in map(word_triples, training)]
        is_long = len(ours) >= shingles.MIN_CONTAINED_SHINGLES
        if any(common >= shingles.SIMILARITY * union for common, union in shares):
            near += 1
        elif is_long and any(common >= shingles.SIMILARITY * len(ours) for common, _ in shares):
            contained += 1
    return Contamination(len(test), near, contained)


OTHER = "quite another text about other things"
INSIDE = " ".join([f"before{place}" for place in range(30)]) + f" {SENTENCE} " + "after it comes more"
LONG = SENTENCE + " and so on" * 20


def test_only_a_near_copy_or_a_contained_text_counts_as_contamination() -> None:
    for test, training, expected in (
        ([SENTENCE.replace("something else", "something more"), OTHER], [[SENTENCE]], Contamination(2, 1, 0)),
        ([SENTENCE.upper() + "!"], [[SENTENCE]], Contamination(1, 1, 0)),
        ([SENTENCE], [[INSIDE]], Contamination(1, 0, 1)),
        (["return a new array of the given shape"], [[INSIDE]], Contamination(1, 0, 0)),
        ([SENTENCE], [[SENTENCE, LONG], [LONG, SENTENCE]], Contamination(1, 1, 0)),
        ([], [[SENTENCE]], Contamination(0, 0, 0)),
        ([SENTENCE], [], Contamination(1, 0, 0)),
    ):
        found = contamination(test, training)
        assert found == expected
        assert found.fraction == (found.num_near_duplicates + found.num_contained) / max(len(test), 1)


def test_the_places_of_near_duplicates_among_the_test_texts_are_known() -> None:
    assert contamination([OTHER, SENTENCE.upper(), SENTENCE], [[SENTENCE]]).place_of_near == (1, 2)


@pytest.mark.parametrize("seed", range(4))
def test_all_pairs_of_a_brute_force_comparison_are_found(seed: int) -> None:
    draw = random.Random(seed)
    words = [f"w{place}" for place in range(12)]  # few words, so that texts share boilerplate
    training = [" ".join(draw.choices(words, k=draw.randint(3, 40))) for _ in range(60)]
    test = [" ".join(draw.choices(words, k=draw.randint(3, 20))) for _ in range(20)]
    for _ in range(60):
        copy = draw.choice(training).split()
        for _ in range(draw.randint(0, 4)):
            copy[draw.randrange(len(copy))] = draw.choice(words)
        start = draw.choice([0, 0, draw.randrange(len(copy))])
        if len(copy) - start >= 3:
            test.append(" ".join(copy[start:]))
    expected = counted_one_by_one(test, training)
    assert expected.num_near_duplicates > 5
    assert expected.num_contained > 0
    for size in (1, 7, 100):
        assert contamination(test, batches(training, size)) == expected
