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

IOB2_TAGS = ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-LOC", "B-PER"]


@pytest.mark.parametrize(
    "written",
    [
        IOB2_TAGS,
        ["I-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-LOC", "I-PER"],
        ["B-PER", "E-PER", "O", "S-LOC", "B-LOC", "E-LOC", "S-PER"],
        ["B-PER", "L-PER", "O", "U-LOC", "B-LOC", "L-LOC", "U-PER"],
    ],
    ids=["IOB2", "IOB1", "IOBES", "BILOU"],
)
def test_every_scheme_is_read_as_the_same_entities(written: list[str]) -> None:
    assert to_iob2(written) == IOB2_TAGS


@pytest.mark.parametrize("scheme", [IOB1, IOB2, IOBES])
def test_tags_of_every_scheme_give_the_entities_of_seqeval(scheme: type) -> None:
    draw = random.Random(1)
    for _ in range(200):
        tags = as_scheme(random_spans(draw), scheme.__name__)
        strict = {(e.tag, e.start, e.end - 1) for e in Entities([tags], scheme).entities[0]}
        assert set(get_entities(to_iob2(tags))) == strict


def random_spans(draw: random.Random) -> list[tuple[str, int]]:
    """Return spans of (type, number of words); O is one of the types."""
    return [(draw.choice(["O", "A", "B"]), draw.randint(1, 3)) for _ in range(draw.randint(1, 6))]


def as_scheme(spans: list[tuple[str, int]], scheme: str) -> list[str]:
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
    assert is_tag("O")
    assert is_tag("B-creative-work")
    assert not any(is_tag(text) for text in ("", "PER", "X-PER", "B-", "o", "IN"))
    assert [type_of(tag) for tag in ("I-creative-work", "O")] == ["creative-work", "O"]
    with pytest.raises(ValueError, match="PER"):
        to_iob2(["O", "PER"])


Given = tuple[Part, str, str]


PARTS = params_of("tagging", splits={"train": "a", "validation": "b", "test": "c"})


def chosen(*given: Given, params: TaggingParams = PARTS) -> Sentences:
    records = [
        (part, LabelledRecord({"tokens": words.split(), "ner_tags": tags.split()}, f"line {number}"))
        for number, (part, words, tags) in enumerate(given)
    ]
    return select(records, params)


FEW: tuple[Given, ...] = (
    ("train", "in Paris", "O B-LOC"),
    ("validation", "to Rome", "O B-LOC"),
    ("test", "by Ada", "O B-PER"),
)


def test_each_entity_type_of_training_has_a_begin_and_an_inside_tag() -> None:
    assert chosen(*FEW).tags == ("O", "B-LOC", "I-LOC")


def test_entity_types_that_training_lacks_are_reported_by_name(caplog: pytest.LogCaptureFixture) -> None:
    assert chosen(*FEW).types_not_trained == {"PER": 1}
    assert "count as missed: PER (1)" in caplog.text
    caplog.clear()
    assert chosen(*FEW, ("train", "of Bob", "O B-PER")).types_not_trained == {}
    assert caplog.text == ""


def test_test_sentences_are_removed_from_training() -> None:
    found = chosen(*FEW, ("train", "BY ada", "O O"))
    assert found.count["in_several_parts"] == 1
    assert [sentence.words for sentence in found.train] == [("in", "Paris")]
    leaks: list[Given] = [("train", words, "O O") for words in ("TO rome", "BY ada", "By Ada")]
    assert chosen(*FEW, *leaks).count.first_places == {"in_several_parts": "line 3"}
    assert len(chosen(*FEW, FEW[0]).train) == 2, "copies within a split stay"


def test_the_counts_add_up() -> None:
    found = chosen(*FEW, ("train", "", ""), ("validation", "by Ada", "O O"))
    count = dict(found.count.by_reason)
    assert count.pop("num_read") == sum(count.values()) == 5
    assert found.count["num_used"] == len(found.train) + len(found.validation) + len(found.test)


def test_the_order_of_records_changes_nothing() -> None:
    given = (*FEW, ("train", "a b", "O B-LOC"), ("train", "a b", "O O"))
    assert chosen(*given) == chosen(*given[::-1])


def test_without_given_splits_the_words_of_a_sentence_determine_its_split() -> None:
    many: list[Given] = [("train", f"word {number}", "B-X O") for number in range(500)]
    found = chosen(*many, params=params_of("tagging"))
    assert len(found.test) == pytest.approx(150, abs=40)
    assert not {it.words for it in found.train} & {it.words for it in found.test}


@pytest.mark.parametrize(
    ("words", "tags", "expected"), [("a b", "O", "2 tags, one for each word, not 1"), ("a", "NNP", "not NNP")]
)
def test_sentences_with_mismatched_words_and_tags_are_named(words: str, tags: str, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        chosen(*FEW, ("train", words, tags))


def test_a_split_without_sentences_is_refused() -> None:
    with pytest.raises(DataError, match="too few tagged sentences") as caught:
        chosen(*FEW[:2])
    assert caught.value.do.startswith("add sentences")


def test_a_file_given_for_training_and_for_test_is_refused() -> None:
    twice: list[Given] = [(part, f"in Paris {n}", "O B-LOC O") for part in ("train", "test") for n in range(3)]
    with pytest.raises(DataError, match="`splits` names one file twice") as caught:
        chosen(*twice, params=params_of("tagging", splits={"train": "a", "test": "a"}))
    assert caught.value.do.startswith("3 of the records also occur in the test or validation split")
