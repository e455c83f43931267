"""Claim: splits are disjoint and stable, every dropped text is counted, and every class can be learned."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from clozeline.params.reading import read_params
from clozeline.params.tasks import ClassificationParams, SplitsParams
from clozeline.system.errors import DataError
from clozeline.tasks.classification import data
from clozeline.tasks.classification.data import Fits, Selection
from clozeline.tasks.files import LabelledRecord, Part

PARAMS = read_params(Path(__file__).parents[3] / "params.yaml").finetune["library"]


def params(**changes: object) -> ClassificationParams:
    limits = {"max_classes": 10, "max_per_class": 1000, "max_train": None, "train_length": None}
    fields = {"text_field": "text", "label_field": "label"}
    usual = {**limits, **fields, "splits": None, "validation_fraction": 0.1, "test_fraction": 0.3}
    return PARAMS.model_copy(update=usual | changes)


@dataclass(frozen=True)
class Labelled:
    texts: tuple[str, ...]
    labels: tuple[str, ...] | None
    given: Part = "train"
    place: str = ""

    def record(self, of: ClassificationParams) -> tuple[Part, LabelledRecord]:
        values: dict[str, object] = dict(zip(("text", "second"), self.texts, strict=False))
        labels = None if self.labels is None else [*self.labels]
        values["label"] = labels if of.multi_label or labels is None else labels[0]
        return self.given, LabelledRecord(values, self.place)


def select(records: Iterable[Labelled], of: ClassificationParams, fits: Fits | None = None) -> Selection:
    return data.select((record.record(of) for record in records), of, fits)


def labelled(text: str, label: str, given: Part = "train") -> Labelled:
    return Labelled((text,), (label.strip(),) if label.strip() else None, given)


def records(**sizes: int) -> list[Labelled]:
    return [labelled(f"{label} says {number}", label) for label, size in sizes.items() for number in range(size)]


def part_of_each(selection: Selection) -> dict[str, str]:
    parts = {"train": selection.train, "validation": selection.validation, "test": selection.test}
    return {example.text: part for part, examples in parts.items() for example in examples}


def assert_adds_up(selection: Selection) -> None:
    count = dict(selection.count.by_reason)
    assert count.pop("num_read") == sum(count.values())
    assert selection.count["num_used"] == len(selection.train) + len(selection.validation) + len(selection.test)


def test_splits_are_disjoint_and_have_the_requested_sizes() -> None:
    selection = select(records(a=2000, b=2000), params(max_per_class=2000))
    identities = [{e.identity for e in part} for part in (selection.train, selection.validation, selection.test)]
    assert sum(map(len, identities)) == len(set.union(*identities)) == 4000
    assert len(selection.test) == pytest.approx(1200, abs=100)
    assert len(selection.validation) == pytest.approx(400, abs=70)
    assert_adds_up(selection)


def test_a_text_stays_in_its_split_if_others_are_added_or_shuffled() -> None:
    few = part_of_each(select(records(a=200, b=200), params()))
    many = part_of_each(select(records(b=500, a=500)[::-1], params()))
    assert {text: many[text] for text in few} == few


def test_the_order_of_records_changes_nothing() -> None:
    given = records(a=50, b=70, c=30)
    assert select(given, params(max_per_class=40)) == select(given[::-1], params(max_per_class=40))


COPIES = [Labelled((f"  {record.texts[0].upper()}\n",), record.labels) for record in records(a=40, b=40)]
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
    ids=["copies", "contradictions", "no text or label", "rarer classes", "large classes"],
)
def test_records_that_are_not_used_are_counted(
    added: list[Labelled], changes: dict[str, Any], counts: dict[str, int]
) -> None:
    selection = select(records(a=40, b=40) + added, params(**changes))
    assert {reason: num for reason, num in selection.count.by_reason.items() if num and reason in counts} == counts
    assert "either" not in {text.lower() for text in part_of_each(selection)}
    assert_adds_up(selection)


def test_the_most_frequent_classes_are_kept_and_ties_go_by_name() -> None:
    assert select(records(d=40, c=40, b=60, a=40), params(max_classes=2)).labels == ("a", "b")


def test_large_classes_are_sampled_down_to_the_limit() -> None:
    selection = select(records(a=300, b=40), params(max_per_class=50))
    sizes = [sum(text.startswith(label) for text in part_of_each(selection)) for label in ("a", "b")]
    assert sizes == [50, 40]
    assert selection.count["above_max_per_class"] == 250
    numbers = sorted(int(text.split()[-1]) for text in part_of_each(selection) if text.startswith("a"))
    assert numbers != list(range(50))
    assert_adds_up(selection)


def test_max_train_keeps_the_same_training_texts_when_others_are_added_and_leaves_other_splits() -> None:
    whole, few = select(records(a=100, b=100), params()), select(records(a=100, b=100), params(max_train=30))
    assert len(few.train) == 30
    assert (few.validation, few.test) == (whole.validation, whole.test)
    assert few.count["beyond_max_train"] == len(whole.train) - 30
    assert_adds_up(few)
    more = select(records(a=110, b=110), params(max_train=30))
    assert len({*more.train} & {*few.train}) > 20


def test_test_texts_of_an_unlearned_class_still_count() -> None:
    everywhere = records(a=60, b=60)
    lonely = next(
        text
        for text in (f"lonely {number}" for number in range(100))
        if text in {e.text for e in select([*everywhere, labelled(text, "a")], params()).test}
    )
    selection = select([*everywhere, labelled(lonely, "z")], params())
    assert selection.labels == ("a", "b")
    assert [example.text for example in selection.test if example.labels == ("z",)] == [lonely]
    assert [selection.num_not_trained(part) for part in (selection.train, selection.test)] == [0, 1]
    assert_adds_up(selection)


def test_a_label_unseen_in_training_stays_on_multi_label_test_texts() -> None:
    splits = SplitsParams(train="t", validation="v", test="s")
    odd = [Labelled((f"{part} {n}",), ("a", "z"), part) for part in ("validation", "test") for n in range(3)]
    several = params(multi_label=True, max_per_class=None, splits=splits)
    selection = select(given_parts() + odd, several)
    assert selection.labels == ("a", "b")
    for part in (selection.validation, selection.test):
        assert len([example for example in part if example.labels == ("a", "z")]) == 3
        assert selection.num_not_trained(part) == 3
    assert_adds_up(selection)


@pytest.mark.parametrize("multi_label", [False, True])
def test_a_split_without_any_learnable_label_is_refused(multi_label: bool) -> None:
    splits = SplitsParams(train="t", validation="v", test="s")
    strange = [Labelled(record.texts, ("z",), "test") if record.given == "test" else record for record in given_parts()]
    with pytest.raises(DataError, match="no test text has a label that the model can answer") as caught:
        select(strange, params(splits=splits, multi_label=multi_label, max_per_class=None))
    assert caught.value.given == "z"
    assert "(a, b)" in caught.value.problem


@pytest.mark.parametrize("given", [[], records(a=100), records(a=1, b=1)], ids=["nothing", "one class", "two texts"])
def test_too_few_labelled_texts_are_refused_with_their_number(given: list[Labelled]) -> None:
    with pytest.raises(DataError, match=f"too few labelled texts: {len(given)} records"):
        select(given, params())


def given_parts() -> list[Labelled]:
    """Return 200 texts for training, 50 for validation and 50 for the test."""
    sizes = {"train": 200, "validation": 50, "test": 50}
    return [
        labelled(f"{label} {part} {number}", label, part)
        for part, size in sizes.items()
        for label in "ab"
        for number in range(size // 2)
    ]


def test_given_splits_are_kept() -> None:
    selection = select(given_parts(), params(splits=SplitsParams(train="t", validation="v", test="s")))
    assert [len(part) for part in (selection.train, selection.validation, selection.test)] == [200, 50, 50]
    assert {text.split()[1]: part for text, part in part_of_each(selection).items()} == {
        part: part for part in ("train", "validation", "test")
    }


def test_a_missing_split_is_taken_from_the_training_split() -> None:
    records = [record for record in given_parts() if record.given != "validation"]
    selection = select(records, params(splits=SplitsParams(train="t", test="s")))
    assert len(selection.test) == 50
    assert len(selection.validation) == pytest.approx(20, abs=12)
    assert len(selection.train) + len(selection.validation) == 200


def test_test_texts_are_removed_from_training_and_validation() -> None:
    leaks = [labelled("A Test 3", "a", "train"), labelled("b test  4", "a", "validation"), labelled("b test 4", "b")]
    selection = select(given_parts() + leaks, params(splits=SplitsParams(train="t", validation="v", test="s")))
    assert selection.count["in_several_parts"] == 3
    assert selection.count["contradictions"] == 0
    assert part_of_each(selection)["a test 3"] == part_of_each(selection)["b test 4"] == "test"
    assert [len(part) for part in (selection.train, selection.validation, selection.test)] == [200, 50, 50]
    assert_adds_up(selection)


def test_a_file_given_for_training_and_for_test_is_refused() -> None:
    texts = records(a=30, b=30)
    with pytest.raises(DataError, match="too few labelled texts") as caught:
        select(
            [*texts, *(replace(text, given="test") for text in texts)], params(splits=SplitsParams(train="t", test="t"))
        )
    assert "60 of the records also occur in the test or validation split" in caught.value.do
    assert "`splits` names one file twice" in caught.value.do


def sets(*label_sets: str) -> list[Labelled]:
    """Return forty texts for each set of one-letter labels."""
    return [Labelled((f"{names} {number}",), tuple(names)) for names in label_sets for number in range(40)]


def test_multi_label_texts_without_a_label_or_with_a_rare_one_are_used() -> None:
    selection = select(sets("ab", "a", "", "bc"), params(multi_label=True, max_per_class=None, max_classes=2))
    assert selection.labels == ("a", "b")
    every = [*selection.train, *selection.validation, *selection.test]
    assert len(every) == selection.count["num_used"] == 160
    assert {example.labels for example in every} == {("a", "b"), ("a",), (), ("b",)}
    assert_adds_up(selection)


def test_the_order_of_labels_does_not_make_a_contradiction() -> None:
    copies = [Labelled(("ab 3",), ("b", "a", "a")), Labelled(("ab 4",), ("a",))]
    selection = select(sets("ab", "") + copies, params(multi_label=True, max_per_class=None))
    assert (selection.count["duplicates"], selection.count["contradictions"]) == (1, 2)


def test_pairs_are_identified_by_both_texts() -> None:
    pairs = [Labelled((f"text {n}", other), (label,)) for n in range(60) for other, label in (("x", "a"), ("y", "b"))]
    selection = select(
        [*pairs, Labelled(("text 1", " X"), ("a",)), Labelled(("text", ""), ("a",))], params(second_field="second")
    )
    assert (selection.count["duplicates"], selection.count["contradictions"], selection.count["without_text"]) == (
        1,
        0,
        1,
    )
    assert {example.second for example in selection.train} == {"x", "y"}
    assert_adds_up(selection)


def test_unusable_texts_are_dropped_and_counted_and_the_first_is_reported_with_its_place() -> None:
    given = [replace(record, place=f"line {number}") for number, record in enumerate(records(a=50, b=50), start=1)]
    selection = select(given, params(), lambda found: [not e.text.endswith("7") for e in found])
    assert selection.count["too_long"] == 10
    assert selection.count.first_places == {"too_long": "line 8"}
    assert not any(text.endswith("7") for text in part_of_each(selection))
    assert_adds_up(selection)


@pytest.mark.parametrize(("odd", "told"), [(["strange"], "strange (texts: 1)"), (["z", "x"], "x, z (texts: 2)")])
def test_labels_without_training_texts_are_named(caplog: pytest.LogCaptureFixture, odd: list[str], told: str) -> None:
    given = [*given_parts(), *(labelled(f"odd {label}", label, "test") for label in odd)]
    select(given, params(splits=SplitsParams(train="t", validation="v", test="s")))
    assert f"count as missed: {told}" in caplog.text
