"""Claim: a test text is counted exactly if a training text is its near-duplicate or contains it."""

import random
from collections.abc import Iterator

import pytest

from clozeline.records.words.shingles import MIN_CONTAINED_SHINGLES, SIMILARITY, Contamination, contamination

SENTENCE = "return a new array of the given shape and type filled with zeros unless the caller asks for something else"


def batches(texts: list[str], size: int = 3) -> Iterator[list[str]]:
    return (texts[start : start + size] for start in range(0, len(texts), size))


def shingles(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[place : place + 3]) for place in range(len(words) - 2)}


def counted_one_by_one(test: list[str], training: list[str]) -> Contamination:
    near = contained = 0
    for text in test:
        ours = shingles(text)
        shares = [(len(ours & theirs), len(ours | theirs)) for theirs in map(shingles, training)]
        if any(common >= SIMILARITY * union for common, union in shares):
            near += 1
        elif len(ours) >= MIN_CONTAINED_SHINGLES and any(common >= SIMILARITY * len(ours) for common, _ in shares):
            contained += 1
    return Contamination(len(test), near, contained)


def test_only_a_near_copy_counts_as_contamination() -> None:
    near = SENTENCE.replace("something else", "something more")
    assert contamination([near, "quite another text about other things"], [[SENTENCE]]) == Contamination(2, 1, 0)
    assert contamination([near], [[SENTENCE]]).fraction == 1.0


def test_the_places_of_near_duplicates_among_the_test_texts_are_known() -> None:
    found = contamination(["quite another text about other things", SENTENCE.upper(), SENTENCE], [[SENTENCE]])
    assert found.place_of_near == (1, 2)


def test_case_and_punctuation_do_not_hide_contamination() -> None:
    assert contamination([SENTENCE.upper() + "!"], [[SENTENCE]]).num_near_duplicates == 1


def test_a_text_inside_a_longer_one_counts_as_contained_but_a_phrase_does_not() -> None:
    long = " ".join([f"before{place}" for place in range(30)]) + f" {SENTENCE} " + "after it comes more"
    assert contamination([SENTENCE], [[long]]) == Contamination(1, 0, 1)
    assert contamination(["return a new array of the given shape"], [[long]]) == Contamination(1, 0, 0)


def test_a_contaminated_text_is_counted_once() -> None:
    long = SENTENCE + " and so on" * 20
    assert contamination([SENTENCE], [[SENTENCE, long], [long, SENTENCE]]) == Contamination(1, 1, 0)


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


def test_empty_test_or_training_text_gives_no_contamination() -> None:
    assert contamination([], [[SENTENCE]]) == Contamination(0, 0, 0)
    assert contamination([], [[SENTENCE]]).fraction == 0.0
    assert contamination([SENTENCE], []) == Contamination(1, 0, 0)
