"""Claim: splits are disjoint and stable, every dropped text is counted, and every class can be learned."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from clozeline.system.errors import DataError
from clozeline.tasks.classification import data
from clozeline.tasks.files import LabelledRecord, Part
from tests.make.tasks import params_of

Given = tuple[Part, LabelledRecord]
SPLITS = {"splits": {"train": "t", "validation": "v", "test": "s"}}
SETS = {"multi_label": True, "max_per_class": None}


def select(records: Iterable[Given], fits: data.Fits | None = None, **changes: object) -> data.Selection:
    """Return the selection, whose counts always add up."""
    selection = data.select(records, params_of("classification", **{"max_per_class": 1000, **changes}), fits)
    count = dict(selection.count.by_reason)
    assert count.pop("num_read") == sum(count.values())
    assert selection.count["num_used"] == sum(map(len, selection.parts.values()))
    return selection


def labelled(text: str, label: object, part: Part = "train", **more: str) -> Given:
    return part, LabelledRecord({"text": text, "label": label, **more}, f"the place of {text}")


def records(**sizes: int) -> list[Given]:
    return [labelled(f"{label} says {number}", label) for label, size in sizes.items() for number in range(size)]


def given_parts() -> list[Given]:
    """Return 200 texts for training, 50 for validation and 50 for the test."""
    sizes: dict[Part, int] = {"train": 100, "validation": 25, "test": 25}
    return [
        labelled(f"{label} {part} {number}", label, part)
        for part, size in sizes.items()
        for label in "ab"
        for number in range(size)
    ]


def sets(*label_sets: str) -> list[Given]:
    """Return forty texts for each set of one-letter labels."""
    return [labelled(f"{names} {number}", [*names]) for names in label_sets for number in range(40)]


def part_of_each(selection: data.Selection) -> dict[str, str]:
    return {example.text: part for part, examples in selection.parts.items() for example in examples}


def test_splits_are_disjoint_and_have_the_requested_sizes() -> None:
    selection = select(records(a=1000, b=1000), test_fraction=0.3, validation_fraction=0.1)
    identities = [{example.identity for example in part} for part in selection.parts.values()]
    assert sum(map(len, identities)) == len(set.union(*identities)) == 2000
    assert len(selection.test) == pytest.approx(600, abs=80)
    assert len(selection.validation) == pytest.approx(200, abs=50)


def test_a_text_stays_in_its_split_whatever_is_added_and_in_any_order() -> None:
    few, many = (part_of_each(select(given)) for given in (records(a=200, b=200), records(b=500, a=500)[::-1]))
    assert {text: many[text] for text in few} == few
    given = records(a=50, b=70, c=30)
    assert select(given, max_per_class=40) == select(given[::-1], max_per_class=40)


COPIES = [labelled(f"  {label.upper()} SAYS {number}\n", label) for label in "ab" for number in range(40)]
CONTRADICTION = [labelled("either", "a"), labelled("Either", "b"), labelled("either", "b")]
UNUSABLE = [labelled(" \n", "a"), labelled("x", " "), labelled("", "")]


@pytest.mark.parametrize(
    ("added", "changes", "counts"),
    [
        (COPIES, {}, {"duplicates": 80}),
        (CONTRADICTION, {}, {"contradictions": 3}),
        (UNUSABLE, {}, {"without_text": 2, "without_label": 1}),
        (records(c=40, d=60), {"max_classes": 2}, {"of_rarer_classes": 80}),
        (records(b=41)[40:], {"max_per_class": 40}, {"above_max_per_class": 1}),
    ],
)
def test_records_that_are_not_used_are_counted(
    added: list[Given], changes: dict[str, Any], counts: dict[str, int]
) -> None:
    selection = select(records(a=40, b=40) + added, **changes)
    assert {reason: num for reason, num in selection.count.by_reason.items() if num and reason in counts} == counts
    assert "either" not in {text.lower() for text in part_of_each(selection)}


def test_the_most_frequent_classes_are_kept_ties_by_name_and_large_ones_sampled() -> None:
    selection = select(records(d=40, c=40, b=300, a=40), max_classes=2, max_per_class=50)
    assert selection.labels == ("a", "b")
    assert selection.count["above_max_per_class"] == 250
    sampled = sorted(int(text.split()[-1]) for text in part_of_each(selection) if text.startswith("b"))
    assert len(sampled) == 50
    assert sampled != list(range(50))


def test_max_train_keeps_the_same_training_texts_when_others_are_added_and_leaves_other_splits() -> None:
    whole, few = select(records(a=100, b=100)), select(records(a=100, b=100), max_train=30)
    assert len(few.train) == 30
    assert (few.validation, few.test) == (whole.validation, whole.test)
    assert few.count["beyond_max_train"] == len(whole.train) - 30
    more = select(records(a=110, b=110), max_train=30)
    assert len({*more.train} & {*few.train}) > 20


@pytest.mark.parametrize(("label", "changes", "told"), [("z", {}, "z (texts: 6)"), ("a|z|x", SETS, "x, z (texts: 12)")])
def test_a_label_unseen_in_training_stays_on_other_texts_and_is_named(
    label: str, changes: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    others: tuple[Part, ...] = ("validation", "test")
    odd = [labelled(f"odd {part} {number}", label, part) for part in others for number in range(3)]
    selection = select(given_parts() + odd, **SPLITS, **changes)
    assert selection.labels == ("a", "b")
    assert [selection.num_not_trained(part) for part in selection.parts.values()] == [0, 3, 3]
    odd_labels = [example.labels for example in selection.test if example.text.startswith("odd")]
    assert odd_labels == [tuple(sorted(label.split("|")))] * 3
    assert f"count as missed: {told}" in caplog.text


TWICE: list[Given] = [(part, record) for part in ("train", "test") for _, record in records(a=30, b=30)]
STRANGE = [labelled(it.values["text"], "z", "test") if part == "test" else (part, it) for part, it in given_parts()]


@pytest.mark.parametrize(
    ("given", "changes", "problem", "do"),
    [
        ([], {}, "too few labelled texts: 0 records", "add labelled texts"),
        (records(a=100), {}, "too few labelled texts: 100 records", "add labelled texts"),
        (records(a=1, b=1), {}, "too few labelled texts: 2 records", "add labelled texts"),
        (TWICE, {"splits": {"train": "t", "test": "t"}}, "120 records", "60 of the records also occur in the test"),
        (STRANGE, SPLITS, "no test text has a label that the model can answer (a, b)", "the same way"),
        (STRANGE, SPLITS | SETS, "no test text has a label that the model can answer (a, b)", "the same way"),
    ],
)
def test_splits_that_teach_or_measure_nothing_are_refused(
    given: list[Given], changes: dict[str, Any], problem: str, do: str
) -> None:
    with pytest.raises(DataError) as caught:
        select(given, **changes)
    assert problem in caught.value.problem
    assert do in caught.value.do
    assert caught.value.given == ("z" if given is STRANGE else None)


def test_given_splits_are_kept_and_test_texts_removed_from_training_and_validation() -> None:
    leaks = [labelled("A Test 3", "a"), labelled("b test  4", "a", "validation"), labelled("b test 4", "b")]
    selection = select(given_parts() + leaks, **SPLITS)
    assert (selection.count["in_several_parts"], selection.count["contradictions"]) == (3, 0)
    assert [len(part) for part in selection.parts.values()] == [200, 50, 50]
    assert all(text.split()[1] == part for text, part in part_of_each(selection).items())


def test_a_missing_split_is_taken_from_the_training_split() -> None:
    given = [(part, record) for part, record in given_parts() if part != "validation"]
    selection = select(given, splits={"train": "t", "test": "s"})
    assert len(selection.test) == 50
    assert len(selection.validation) == pytest.approx(20, abs=12)
    assert len(selection.train) + len(selection.validation) == 200


def test_multi_label_texts_without_a_label_or_with_a_rare_one_are_used() -> None:
    selection = select(sets("ab", "a", "", "bc"), **SETS, max_classes=2)
    assert selection.labels == ("a", "b")
    every = [example for part in selection.parts.values() for example in part]
    assert len(every) == selection.count["num_used"] == 160
    assert {example.labels for example in every} == {("a", "b"), ("a",), (), ("b",)}


def test_the_order_of_labels_does_not_make_a_contradiction() -> None:
    selection = select([*sets("ab", ""), labelled("ab 3", ["b", "a", "a"]), labelled("ab 4", ["a"])], **SETS)
    assert (selection.count["duplicates"], selection.count["contradictions"]) == (1, 2)


def test_pairs_are_identified_by_both_texts() -> None:
    seconds = {"x": "a", "y": "b"}
    pairs = [labelled(f"text {n}", label, second=second) for n in range(60) for second, label in seconds.items()]
    odd = [labelled("text 1", "a", second=" X"), labelled("text", "a", second="")]
    selection = select([*pairs, *odd], second_field="second")
    counts = selection.count
    assert (counts["duplicates"], counts["contradictions"], counts["without_text"]) == (1, 0, 1)
    assert {example.second for example in selection.train} == {"x", "y"}


def test_texts_that_do_not_fit_are_dropped_and_counted_and_the_first_is_reported_with_its_place() -> None:
    given = [(part, replace(it, place=f"line {number}")) for number, (part, it) in enumerate(records(a=50, b=50), 1)]
    selection = select(given, lambda found: [not example.text.endswith("7") for example in found])
    assert selection.count["too_long"] == 10
    assert selection.count.first_places == {"too_long": "line 8"}
    assert not any(text.endswith("7") for text in part_of_each(selection))
