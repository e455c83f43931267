"""Claim: the same entities are read from every common tagging scheme."""

import random

import pytest
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB1, IOB2, IOBES, Entities

from clozeline.tasks.tagging.data import is_tag, to_iob2, type_of

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
    with pytest.raises(ValueError, match="PER"):
        to_iob2(["O", "PER"])


def test_an_entity_type_may_contain_a_dash() -> None:
    assert type_of("I-creative-work") == "creative-work"
    assert type_of("O") == "O"
