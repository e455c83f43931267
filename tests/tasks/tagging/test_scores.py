"""Claim: entity scores equal seqeval's, on random tags and on tags that break the rules of the scheme."""

import random

import pytest
from seqeval.metrics import classification_report, f1_score, precision_score, recall_score

from clozeline.tasks.tagging.sentences import entities_in, score

ADVERSARIAL = [
    ([["O", "O"]], [["O", "O"]]),
    ([["B-A", "I-A"]], [["O", "O"]]),
    ([["O", "O"]], [["B-A", "I-A"]]),
    ([["B-A", "I-A", "I-A"]], [["I-A", "I-B", "I-A"]]),
    ([["B-A", "B-A", "I-A"]], [["B-A", "I-A", "I-A"]]),
    ([["B-A"], ["I-A"]], [["B-A"], ["I-A"]]),
]


def random_tags(draw: random.Random) -> tuple[list[list[str]], list[list[str]]]:
    def drawn(length: int) -> list[str]:
        return [draw.choice(["O", "O", "B-A", "I-A", "B-B", "I-B"]) for _ in range(length)]

    lengths = [draw.randint(1, 8) for _ in range(20)]
    return [drawn(length) for length in lengths], [drawn(length) for length in lengths]


def cases() -> list[tuple[list[list[str]], list[list[str]]]]:
    draw = random.Random(5)
    return ADVERSARIAL + [random_tags(draw) for _ in range(50)]


def test_figures_equal_those_of_seqeval() -> None:
    for actual, predicted in cases():
        ours = score(actual, predicted)
        theirs = [f(actual, predicted, zero_division=0) for f in (precision_score, recall_score, f1_score)]
        assert [ours.precision, ours.recall, ours.f1] == pytest.approx(theirs)


def test_figures_of_each_type_equal_those_of_seqeval() -> None:
    for actual, predicted in cases()[len(ADVERSARIAL) :]:
        report = classification_report(actual, predicted, output_dict=True, zero_division=0)
        for name, ours in score(actual, predicted).per_type.items():
            theirs = [report[name][key] for key in ("precision", "recall", "f1-score", "support")]
            assert [ours.precision, ours.recall, ours.f1, ours.num_entities] == pytest.approx(theirs)


def test_the_interval_contains_the_figure_and_is_deterministic() -> None:
    actual, predicted = random_tags(random.Random(2))
    once, twice = score(actual, predicted), score(actual, predicted)
    assert once.f1_low <= once.f1 <= once.f1_high
    assert once == twice


def test_a_lead_is_paired_by_sentence() -> None:
    actual, better = random_tags(random.Random(2))
    worse = [["O"] * len(tags) if place == 0 else tags for place, tags in enumerate(better)]
    ours = score(actual, better)
    assert ours.lead_over(ours) == (0, 0)
    low, high = score(actual, actual).lead_over(ours)
    assert 0 < low < 1 - ours.f1 < high < 1
    narrow, wide = ours.lead_over(score(actual, worse)), score(actual, worse)
    assert narrow[1] - narrow[0] < (wide.f1_high - wide.f1_low) / 2


def test_words_of_entities_are_listed_in_order() -> None:
    words = ["New", "York", "met", "Ada", "Bob"]
    tags = ["B-LOC", "I-LOC", "O", "B-PER", "B-PER"]
    assert entities_in(words, tags) == [("New York", "LOC"), ("Ada", "PER"), ("Bob", "PER")]
