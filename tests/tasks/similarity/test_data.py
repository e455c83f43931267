"""Claim: a docstring is split into summary and description, and neither contains its own name."""

import random
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from clozeline.system.errors import DataError
from clozeline.tasks.files import LabelledRecord, Part
from clozeline.tasks.formats import pair_readers
from clozeline.tasks.selection import Splits
from clozeline.tasks.similarity.data import TextPair, parted, select, without_name
from tests.make.tasks import params_of

CASES = {
    "Sort a list.\n\n    Stable, in place.": ("Sort a list.", "Stable, in place."),
    "Sort a list. It is stable.\nAnd quick.": ("Sort a list.", "It is stable. And quick."),
    "Sort a list": ("Sort a list", ""),
    "sort(x, /) -> list\n\nSort a\nlist.\n\nStable.": ("Sort a list.", "Stable."),
    "Sort e.g. numbers, as of 3.11 with keys.\n \nStable.": ("Sort e.g. numbers, as of 3.11 with keys.", "Stable."),
    "": ("", ""),
}


@pytest.mark.parametrize("text", CASES)
def test_a_docstring_is_divided_into_first_sentence_and_rest(text: str) -> None:
    assert parted(text) == CASES[text]


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("`fit_transform`, or Scaler.fit_transform(x).", "a.Scaler.fit_transform", "`this`, or this(x)."),
        ("A Scaler scales.", "a.Scaler", "A this scales."),
        (
            "Sort a.sort(x), sort (x), `sort` sort; resort().",
            "a.sort",
            "Sort this(x), this (x), `this` sort; resort().",
        ),
        ("Any text.", "", "Any text."),
        ("\ua500: call a.sort(x).", "a.sort", "\ua500: call a.sort(x)."),
    ],
)
def test_the_name_of_a_function_is_replaced_in_calls_but_not_as_a_plain_word(
    text: str, name: str, expected: str
) -> None:
    """A text with the placeholder of the search stays as it is."""
    assert without_name(text, name) == expected


def by_a_pattern_of_its_own(text: str, name: str) -> str:
    """Return the expected result of `without_name` for names of word characters, by a pattern with the name in it."""
    if name.isalpha() and name.islower():
        return re.sub(rf"(?:\b[\w.]+\.{name}\b|\b{name}\b(?=\s?\()|(?<=`){name}(?=`))", "this", text)
    return re.sub(rf"\b(?:[\w.]+\.)?{name}\b", "this", text)


@pytest.mark.parametrize("name", ["aa", "sort", "Aa", "_a", "a1", "größe"])
def test_replacing_a_name_gives_the_result_of_a_regular_expression(name: str) -> None:
    draw = random.Random(name)
    pieces = [name, name, name.upper(), name[0], "x", ".", ".", " ", "(", "`", "é", "\n", "-"]
    num_changed = 0
    for _ in range(3000):
        text = "".join(draw.choices(pieces, k=draw.randint(1, 12)))
        expected = by_a_pattern_of_its_own(text, name)
        assert without_name(text, f"module.{name}") == expected, text
        num_changed += expected != text
    assert num_changed > 100


FIELDS = {"first_field": "sentence1", "second_field": "sentence2", "score_field": "score"}


def chosen(rows: Iterable[dict[str, object]], **changes: object) -> Splits[TextPair]:
    records = [("train", LabelledRecord(row, f"x, line {number}")) for number, row in enumerate(rows, start=1)]
    return select(records, params_of("similarity", **changes))


def pairs(num: int) -> list[dict[str, object]]:
    return [{"sentence1": f"query {n}", "sentence2": f"text {n}", "score": str(n % 6)} for n in range(num)]


def adds_up(found: Splits[TextPair]) -> bool:
    counts = dict(found.count.by_reason)
    return counts.pop("num_read") == sum(counts.values())


def test_scores_are_divided_by_the_scale_and_rows_without_a_score_counted() -> None:
    rows = [*pairs(60), {"sentence1": "a", "sentence2": "b", "score": ""}, {"sentence1": "", "sentence2": "b"}]
    found = chosen(rows, score_field="score")
    used = [*found.train, *found.validation, *found.test]
    assert all(pair.score == int(pair.first.split()[1]) % 6 / 5 for pair in used)
    assert (found.count["without_score"], found.count["without_text"], found.count["num_used"]) == (1, 1, 60)
    assert adds_up(found)


def test_a_score_outside_the_scale_is_reported_with_its_line() -> None:
    with pytest.raises(DataError, match=r"x, line 3: field `score`.*0 \(`lowest_score`\) to 5, .*: 7"):
        chosen([*pairs(2), {"sentence1": "a", "sentence2": "b", "score": "7"}], score_field="score")


def test_a_repeated_pair_has_the_mean_of_its_scores() -> None:
    found = chosen(
        [*pairs(60), *({"sentence1": "A", "sentence2": "B", "score": n} for n in (1, 4))], score_field="score"
    )
    (pair,) = (pair for pair in [*found.train, *found.validation, *found.test] if pair.first == "A")
    assert pair.score == 0.5
    assert found.count["twice"] == 1
    assert adds_up(found)


def test_no_text_is_in_two_splits() -> None:
    rows = [{"sentence1": f"query {n % 90}", "sentence2": f"text {n % 70}"} for n in range(200)]
    found = chosen(rows)
    for name in ("first", "second"):
        texts = [{getattr(pair, name) for pair in part} for part in (found.train, found.validation, found.test)]
        assert len(set.union(*texts)) == sum(map(len, texts))
    assert found.count["in_several_parts"] > 10
    assert adds_up(found)


def test_the_order_of_the_records_changes_nothing_and_too_few_are_refused() -> None:
    assert chosen(pairs(80)) == chosen(reversed(pairs(80)))
    with pytest.raises(DataError, match="1 records, 1 of use"):
        chosen(pairs(1))


def test_docstrings_give_pairs_and_trivial_ones_are_dropped_and_counted() -> None:
    docs = [
        {"text": f"Sort the list {n}.\n\nCalls lib.fun_{n}(x) on a list of {n} items.", "title": f"lib.fun_{n}"}
        for n in range(60)
    ]
    bad = [
        "Sort it all.",
        "Sorts.\n\nA list is sorted by what it holds.",
        "Sort it all.\n\nTo sort it all, call it or not.",
        "",
    ]
    found = chosen([*docs, *({"text": text, "title": ""} for text in bad)], docstring_field="text", title_field="title")
    assert (found.count["too_short"], found.count["repeated"], found.count["without_text"]) == (2, 1, 1)
    assert adds_up(found)
    assert all(re.fullmatch(r"Calls this\(x\) on a list of \d+ items\.", pair.second) for pair in found.train)


def test_a_limit_on_training_pairs_counts_the_rest_and_keeps_the_other_splits() -> None:
    whole, few = chosen(pairs(200)), chosen(pairs(200), max_train=30)
    assert (few.validation, few.test) == (whole.validation, whole.test)
    assert len(few.train) == 30
    assert few.count["beyond_max_train"] == len(whole.train) - 30
    assert adds_up(few)
    assert [pair for pair in whole.train if pair in few.train] == few.train
    more = chosen(pairs(230), max_train=30)
    assert len(set(more.train) & set(few.train)) > 20, "adding pairs keeps this one"


def test_the_first_duplicated_or_leaking_pair_is_reported_with_its_place() -> None:
    rows: list[tuple[Part, str, str]] = [(part, f"{part} {n}", f"of {part} {n}") for part in PARTS for n in range(3)]
    leaks: list[tuple[Part, str, str]] = [
        ("train", "other", "of test 1"),  # Its second text is in a test pair,
        ("train", "test 2", "another"),  # ... here the first text is,
        ("train", "test 0", "of test 0"),  # ... here both texts are.
        ("test", "test 0", "of test 0"),
    ]
    records = [
        (part, LabelledRecord({"sentence1": first, "sentence2": second}, f"line {number}"))
        for number, (part, first, second) in enumerate([*rows, *leaks], start=1)
    ]
    given, (*left, twice) = records[: len(rows)], records[len(rows) :]
    for leak in left:
        found = select([*given, leak, leak], params_of("similarity", splits=SPLITS))
        assert found.count.first_places["in_several_parts"] == leak[1].place
    assert select([*given, twice], params_of("similarity", splits=SPLITS)).count.first_places == {"twice": "line 13"}


PARTS: tuple[Part, ...] = ("train", "validation", "test")
SPLITS = {"train": "a", "validation": "b", "test": "c"}


@pytest.mark.parametrize("alike", PARTS)
def test_a_split_with_constant_scores_is_refused_by_name(alike: Part) -> None:
    records: list[tuple[Part, LabelledRecord]] = [
        (
            part,
            LabelledRecord({"sentence1": f"{part} {n}", "sentence2": "x", "score": 4 if part == alike else n}, "line"),
        )
        for part in PARTS
        for n in range(3)
    ]
    with pytest.raises(DataError, match=f"all 3 {alike} pairs have the score 4") as caught:
        select(records, params_of("similarity", score_field="score", splits=SPLITS))
    assert "add pairs with other scores" in caught.value.do


@pytest.mark.parametrize("score_field", [None, "score"])
def test_a_file_given_for_training_and_for_test_is_refused(score_field: str | None) -> None:
    given: tuple[Part, Part] = ("train", "test")
    records = [(part, LabelledRecord(row, "line")) for part in given for row in pairs(5)]
    with pytest.raises(DataError, match=r"5 of the records also occur in the test .* `splits` names one file twice"):
        select(records, params_of("similarity", score_field=score_field, splits={"train": "a", "test": "a"}))


def test_columns_without_a_header_get_the_configured_names(tmp_path: Path) -> None:
    path = tmp_path / "sts.tsv"
    path.write_text('4.5\tA "lone quote\tB\tsource\r\n\t\t\n\tC\tD\n')
    read = pair_readers(["score", "sentence1", "sentence2"])[".tsv"]
    records = list(read(path, FIELDS))
    assert [record.values["score"] for record in records] == ["4.5", ""]
    assert records[0].values["sentence1"] == 'A "lone quote'
    assert records[1].place.endswith("line 3")
    path.write_text("4.5\tA\n")
    with pytest.raises(DataError, match="line 1: 2 columns"):
        list(read(path, FIELDS))
    with pytest.raises(DataError, match="no field `sentence2`"):
        list(pair_readers(["score", "sentence1"])[".tsv"](path, FIELDS))
    assert pair_readers(None) == {}
