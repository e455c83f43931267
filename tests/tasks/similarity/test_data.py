"""Claim: a docstring is split into summary and description, and neither contains its own name."""

import random
import re
from collections.abc import Iterable

import pytest

from clozeline.system.errors import DataError
from clozeline.tasks.files import LabelledRecord, Part
from clozeline.tasks.selection import Splits
from clozeline.tasks.similarity import data
from clozeline.tasks.similarity.data import TextPair, without_name
from tests.make.tasks import params_of


@pytest.mark.parametrize(
    ("text", "summary", "description"),
    [
        ("Sort a list.\n\n    Stable, in place.", "Sort a list.", "Stable, in place."),
        ("Sort a list. It is stable.\nAnd quick.", "Sort a list.", "It is stable. And quick."),
        ("Sort a list", "Sort a list", ""),
        ("sort(x, /) -> list\n\nSort a\nlist.\n\nStable.", "Sort a list.", "Stable."),
        ("Sort e.g. numbers, as of 3.11 with keys.\n \nStable.", "Sort e.g. numbers, as of 3.11 with keys.", "Stable."),
        ("", "", ""),
    ],
)
def test_a_docstring_is_divided_into_first_sentence_and_rest(text: str, summary: str, description: str) -> None:
    assert data.parted(text) == (summary, description)


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("`fit_transform`, or Scaler.fit_transform(x).", "a.Scaler.fit_transform", "`this`, or this(x)."),
        ("Sort a.sort(x), `sort` sort; resort().", "a.sort", "Sort this(x), `this` sort; resort()."),
        ("Any text.", "", "Any text."),
        ("\ua500: call a.sort(x).", "a.sort", "\ua500: call a.sort(x)."),  # holds the placeholder of the search
    ],
)
def test_the_name_of_a_function_is_replaced_in_calls_but_not_as_a_plain_word(
    text: str, name: str, expected: str
) -> None:
    assert without_name(text, name) == expected


@pytest.mark.parametrize("name", ["aa", "sort", "Aa", "_a", "a1", "größe"])
def test_replacing_a_name_gives_the_result_of_a_regular_expression(name: str) -> None:
    draw, is_plain = random.Random(name), name.isalpha() and name.islower()
    as_code = rf"(?:\b[\w.]+\.{name}\b|\b{name}\b(?=\s?\()|(?<=`){name}(?=`))"
    pattern = as_code if is_plain else rf"\b(?:[\w.]+\.)?{name}\b"
    pieces = [name, name, name.upper(), name[0], "x", ".", ".", " ", "(", "`", "é", "\n", "-"]
    num_changed = 0
    for _ in range(3000):
        text = "".join(draw.choices(pieces, k=draw.randint(1, 12)))
        expected = re.sub(pattern, "this", text)
        assert without_name(text, f"module.{name}") == expected, text
        num_changed += expected != text
    assert num_changed > 100


Given = tuple[Part, LabelledRecord]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
SPLITS = {"train": "a", "validation": "b", "test": "c"}


def chosen(records: Iterable[Given], **changes: object) -> Splits[TextPair]:
    """Return the selection, whose counts always add up."""
    found = data.select(records, params_of("similarity", **changes))
    counts = dict(found.count.by_reason)
    assert counts.pop("num_read") == sum(counts.values())
    return found


def pair(first: str, second: str, score: object = None, part: Part = "train") -> Given:
    return part, LabelledRecord({"sentence1": first, "sentence2": second, "score": score}, f"the place of {second}")


def pairs(num: int) -> list[Given]:
    return [pair(f"query {n}", f"text {n}", str(n % 6)) for n in range(num)]


def used(found: Splits[TextPair]) -> list[TextPair]:
    return [pair for part in found.parts.values() for pair in part]


def test_scores_are_divided_by_the_scale_copies_get_their_mean_and_rows_without_a_score_are_counted() -> None:
    copies, unusable = [pair("A", "B", 1), pair("A", "B", 4)], [pair("a", "b", ""), pair("", "b")]
    found = chosen([*pairs(60), *copies, *unusable], score_field="score")
    for it in used(found):
        assert it.score == (0.5 if it.first == "A" else int(it.first.split()[1]) % 6 / 5)
    counts = [found.count[reason] for reason in ("without_score", "without_text", "twice", "num_used")]
    assert counts == [1, 1, 1, 61]


def test_no_text_of_matching_pairs_is_in_two_splits() -> None:
    found = chosen(pair(f"query {n % 90}", f"text {n % 70}") for n in range(200))
    for name in ("first", "second"):
        texts = [{getattr(pair, name) for pair in part} for part in found.parts.values()]
        assert len(set.union(*texts)) == sum(map(len, texts))
    assert found.count["in_several_parts"] > 10


def test_the_order_of_the_records_changes_nothing_and_training_pairs_can_be_limited() -> None:
    whole, few = chosen(pairs(80)), chosen(pairs(80)[::-1], max_train=30)
    assert whole == chosen(pairs(80)[::-1])
    assert (few.train, few.validation, few.test) == (whole.train[:30], whole.validation, whole.test)


def test_docstrings_give_pairs_and_trivial_ones_are_dropped_and_counted() -> None:
    text = "Sort the list {0}.\n\nCalls lib.fun_{0}(x) on a list of {0} items."
    docs = [{"text": text.format(n), "title": f"lib.fun_{n}"} for n in range(60)]
    trivial = {
        "too_short": ["Sort it all.", "Sorts.\n\nA list is sorted by what it holds."],
        "repeated": ["Sort it all.\n\nTo sort it all, call it or not."],
        "without_text": [""],
    }
    docs += [{"text": text, "title": ""} for texts in trivial.values() for text in texts]
    records: list[Given] = [("train", LabelledRecord(values, "")) for values in docs]
    found = chosen(records, docstring_field="text", title_field="title")
    assert {reason: found.count[reason] for reason in trivial} == {name: len(it) for name, it in trivial.items()}
    assert all(re.fullmatch(r"Calls this\(x\) on a list of \d+ items\.", pair.second) for pair in found.train)


@pytest.mark.parametrize(
    ("first", "second", "part", "reason"),
    [
        ("other", "of test 1", "train", "in_several_parts"),
        ("test 2", "another", "train", "in_several_parts"),
        ("test 0", "of test 0", "train", "in_several_parts"),
        ("test 0", "of test 0", "test", "twice"),
    ],
)
def test_the_first_duplicated_or_leaking_pair_is_reported_with_its_place(
    first: str, second: str, part: Part, reason: str
) -> None:
    given = [pair(f"{name} {n}", f"of {name} {n}", part=name) for name in PARTS for n in range(3)]
    odd = pair(first, second, part=part)
    for record, place in ((odd, "first"), (odd, "again")):
        given.append((record[0], LabelledRecord(record[1].values, place)))
    assert chosen(given, splits=SPLITS).count.first_places[reason] == "first"


def constant(alike: Part) -> list[Given]:
    return [pair(f"{part} {n}", "x", 4 if part == alike else n, part) for part in PARTS for n in range(3)]


@pytest.mark.parametrize(
    ("records", "changes", "problem"),
    [
        (pairs(1), {}, "1 records, 1 of use"),
        ([pair("a", "b", "7")], {}, r"the place of b: field `score`.*0 \(`lowest_score`\) to 5, .*: 7"),
        *((constant(part), {"splits": SPLITS}, f"all 3 {part} pairs have the score 4") for part in PARTS),
    ],
)
def test_pairs_that_teach_or_measure_nothing_are_refused(
    records: list[Given], changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        chosen(records, score_field="score", **changes)
