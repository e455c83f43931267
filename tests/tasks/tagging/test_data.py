"""Claim: the same entities are read from every common tagging scheme."""

import random

import pytest
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB1, IOB2, IOBES, Entities

from clozeline.params.tasks import TaggingParams
from clozeline.system.errors import DataError
from clozeline.tasks.files import LabelledRecord, Part
from clozeline.tasks.tagging.data import Sentences, is_tag, select, to_iob2, type_of
from tests.make.tasks import params_of


@pytest.mark.parametrize("scheme", [IOB1, IOB2, IOBES])
def test_tags_of_every_scheme_give_the_entities_of_seqeval(scheme: type) -> None:
    draw = random.Random(1)
    for _ in range(200):
        tags = as_scheme([(draw.choice("OAB"), draw.randint(1, 3)) for _ in range(draw.randint(1, 6))], scheme.__name__)
        strict = {(e.tag, e.start, e.end - 1) for e in Entities([tags], scheme).entities[0]}
        assert set(get_entities(to_iob2(tags))) == strict
        bilou = [tag.replace("E-", "L-").replace("S-", "U-") for tag in tags]
        assert to_iob2(bilou) == to_iob2(tags)


def as_scheme(spans: list[tuple[str, int]], scheme: str) -> list[str]:
    """Return the tags of spans of (type, number of words); O is one of the types."""
    tags: list[str] = []
    before = "O"
    for name, length in spans:
        if name == "O":
            tags += ["O"] * length
        elif scheme == "IOBES":
            tags += [f"S-{name}"] if length == 1 else [f"B-{name}", *[f"I-{name}"] * (length - 2), f"E-{name}"]
        else:
            first = "B" if scheme == "IOB2" or before == name else "I"
            tags += [f"{first}-{name}", *[f"I-{name}"] * (length - 1)]
        before = name
    return tags


def test_an_invalid_tag_is_refused() -> None:
    tags = ("O", "B-creative-work", "", "PER", "X-PER", "B-", "o", "IN")
    assert [text for text in tags if is_tag(text)] == ["O", "B-creative-work"]
    assert [type_of(tag) for tag in ("I-creative-work", "O")] == ["creative-work", "O"]
    with pytest.raises(ValueError, match="PER"):
        to_iob2(["O", "PER"])


Given = tuple[Part, str, str]
PARTS = params_of("tagging", splits={"train": "a", "validation": "b", "test": "c"})
FEW: tuple[Given, ...] = (
    ("train", "in Paris", "O B-LOC"),
    ("validation", "to Rome", "O B-LOC"),
    ("test", "by Ada", "O B-PER"),
)


def chosen(*given: Given, params: TaggingParams = PARTS) -> Sentences:
    records = [
        (part, LabelledRecord({"tokens": words.split(), "ner_tags": tags.split()}, f"line {number}"))
        for number, (part, words, tags) in enumerate(given)
    ]
    return select(records, params)


def test_each_entity_type_of_training_has_two_tags_and_types_that_it_lacks_are_reported_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = chosen(*FEW)
    assert (found.tags, found.types_not_trained) == (("O", "B-LOC", "I-LOC"), {"PER": 1})
    assert "count as missed: PER (1)" in caplog.text
    caplog.clear()
    assert chosen(*FEW, ("train", "of Bob", "O B-PER")).types_not_trained == {}
    assert caplog.text == ""


def test_test_sentences_are_removed_from_training_and_copies_within_a_split_stay() -> None:
    found = chosen(*FEW, *(("train", words, "O O") for words in ("TO rome", "BY ada", "By Ada")))
    assert (found.count["in_several_parts"], found.count.first_places) == (3, {"in_several_parts": "line 3"})
    assert [sentence.words for sentence in found.train] == [("in", "Paris")]
    assert len(chosen(*FEW, FEW[0]).train) == 2


def test_the_counts_add_up_and_the_order_of_records_changes_nothing() -> None:
    given: tuple[Given, ...] = (*FEW, ("train", "", ""), ("train", "a b", "O B-LOC"), ("train", "a b", "O O"))
    found = chosen(*given)
    count = dict(found.count.by_reason)
    assert count.pop("num_read") == sum(count.values()) == 6
    assert found.count["num_used"] == sum(map(len, found.parts.values())) == 5
    assert found.parts == chosen(*given[::-1]).parts


def test_without_given_splits_the_words_of_a_sentence_determine_its_split() -> None:
    many: list[Given] = [("train", f"word {number}", "B-X O") for number in range(500)]
    found = chosen(*many, params=params_of("tagging"))
    assert len(found.test) == pytest.approx(150, abs=40)
    assert not {it.words for it in found.train} & {it.words for it in found.test}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([*FEW, ("train", "a b", "O")], "2 tags, one for each word, not 1"),
        ([*FEW, ("train", "a", "NNP")], "not NNP"),
        (FEW[:2], "too few tagged sentences"),
        ([("train", "in Paris", "O O"), *FEW[1:]], "too few tagged sentences"),
    ],
)
def test_sentences_that_do_not_fit_their_tags_or_teach_nothing_are_refused(given: list[Given], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        chosen(*given)
