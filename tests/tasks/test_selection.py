"""Claim: parts are disjoint and stay put, nothing is lost uncounted, and every class can be learned."""

from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.errors import DataError
from clozeline.params import FinetuneParams, read_params
from clozeline.tasks.labelled import Labelled
from clozeline.tasks.selection import Selection, count_seen, identity_of, select

PARAMS = read_params(Path(__file__).parents[2] / "params.yaml").finetune["library"]


def params(**changes: object) -> FinetuneParams:
    usual = {"max_classes": 10, "max_per_class": 1000, "validation_fraction": 0.1, "test_fraction": 0.3}
    return PARAMS.model_copy(update=usual | changes)


def records(**sizes: int) -> list[Labelled]:
    return [Labelled(f"{label} says {number}", label) for label, size in sizes.items() for number in range(size)]


def part_of_each(selection: Selection) -> dict[str, str]:
    parts = {"train": selection.train, "validation": selection.validation, "test": selection.test}
    return {example.text: part for part, examples in parts.items() for example in examples}


def assert_adds_up(selection: Selection) -> None:
    count = asdict(selection.count)
    assert count.pop("num_read") == sum(count.values())
    assert selection.count.num_used == len(selection.train) + len(selection.validation) + len(selection.test)


def test_parts_are_disjoint_and_of_the_asked_sizes() -> None:
    selection = select(records(a=2000, b=2000), params(max_per_class=2000))
    identities = [{e.identity for e in part} for part in (selection.train, selection.validation, selection.test)]
    assert sum(map(len, identities)) == len(set.union(*identities)) == 4000
    assert len(selection.test) == pytest.approx(1200, abs=100)
    assert len(selection.validation) == pytest.approx(400, abs=70)
    assert_adds_up(selection)


def test_a_text_stays_in_its_part_when_others_come_or_are_shuffled() -> None:
    few = part_of_each(select(records(a=200, b=200), params()))
    many = part_of_each(select(records(b=500, a=500)[::-1], params()))
    assert {text: many[text] for text in few} == few


def test_the_order_of_records_changes_nothing() -> None:
    given = records(a=50, b=70, c=30)
    assert select(given, params(max_per_class=40)) == select(given[::-1], params(max_per_class=40))


def test_copies_that_differ_in_case_and_space_are_one_text() -> None:
    copies = [Labelled(f"  {record.text.upper()}\n", record.label) for record in records(a=40, b=40)]
    selection = select(records(a=40, b=40) + copies, params())
    assert selection.count.duplicates == 80
    assert selection.count.num_used == 80
    assert_adds_up(selection)


def test_a_text_with_two_labels_is_used_with_neither() -> None:
    contradiction = [Labelled("either", "a"), Labelled("Either", "b"), Labelled("either", "b")]
    selection = select(records(a=40, b=40) + contradiction, params())
    assert selection.count.contradictions == 3
    assert "either" not in {text.lower() for text in part_of_each(selection)}
    assert_adds_up(selection)


def test_records_without_text_or_label_are_counted() -> None:
    selection = select([*records(a=40, b=40), Labelled(" \n", "a"), Labelled("x", " "), Labelled("", "")], params())
    assert (selection.count.without_text, selection.count.without_label) == (2, 1)
    assert_adds_up(selection)


def test_the_most_frequent_classes_are_kept_and_ties_go_by_name() -> None:
    selection = select(records(d=40, c=40, b=60, a=40), params(max_classes=2))
    assert selection.labels == ("a", "b")
    assert selection.count.of_rarer_classes == 80
    assert_adds_up(selection)


def test_large_classes_are_cut_to_the_limit_and_not_by_their_order() -> None:
    selection = select(records(a=300, b=40), params(max_per_class=50))
    sizes = [sum(text.startswith(label) for text in part_of_each(selection)) for label in ("a", "b")]
    assert sizes == [50, 40]
    assert selection.count.above_max_per_class == 250
    numbers = sorted(int(text.split()[-1]) for text in part_of_each(selection) if text.startswith("a"))
    assert numbers != list(range(50))
    assert_adds_up(selection)


def test_a_class_that_could_not_be_learned_is_not_asked_for() -> None:
    everywhere = records(a=60, b=60)
    lonely = next(
        text
        for text in (f"lonely {number}" for number in range(100))
        if text in {e.text for e in select([*everywhere, Labelled(text, "a")], params()).test}
    )
    selection = select([*everywhere, Labelled(lonely, "z")], params())
    assert selection.labels == ("a", "b")
    assert selection.count.of_classes_without_training_text == 1
    assert_adds_up(selection)


@pytest.mark.parametrize("given", [[], records(a=100), records(a=1, b=1)], ids=["nothing", "one class", "two texts"])
def test_too_few_labelled_texts_are_told_with_their_number(given: list[Labelled]) -> None:
    with pytest.raises(DataError, match="too few labelled texts") as caught:
        select(given, params())
    assert str(caught.value.given).startswith(f"{len(given)} records")


def test_test_texts_seen_in_pretraining_are_counted(tmp_path: Path) -> None:
    selection = select(records(a=60, b=60), params())
    seen = [selection.test[0].text.upper(), selection.test[1].text + "\n", "another text", selection.train[0].text]
    pq.write_table(pa.table({"text": seen}), tmp_path / "train.parquet")
    assert count_seen(selection.test, tmp_path / "train.parquet") == 2


def test_identity_ignores_case_and_white_space_and_nothing_else() -> None:
    assert identity_of("A  b\nC") == identity_of("a b c ")
    assert identity_of("a b c") != identity_of("a b, c")
