import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clozeline.cli.evaluate import source_of
from clozeline.orchestration.import_items import items_of_records, items_of_texts
from clozeline.records.finetune.scored_items import EntitySpan, HeldOut
from clozeline.system.errors import DataError

CASES = [
    ("text-classification", False, {"text": "a", "label": "good"}, HeldOut(text="a", right=("good",))),
    (
        "text-classification",
        True,
        {"text": "a", "second": "b", "label": 1},
        HeldOut(text="a", second="b", right=("1",)),
    ),
    (
        "feature-extraction",
        False,
        {"sentence1": "a", "sentence2": "b", "score": "4.5"},
        HeldOut(text="a", second="b", score=4.5),
    ),
    (
        "token-classification",
        False,
        {"tokens": ["in", "New", "York"], "ner_tags": ["O", "B-LOC", "I-LOC"]},
        HeldOut(text="in New York", entities=(EntitySpan(start=3, end=11, type="LOC"),)),
    ),
    (
        "question-answering",
        False,
        {"question": "q", "context": "c d", "answers": {"text": ["d"], "answer_start": [2]}},
        HeldOut(text="q", second="c d", right=("d",)),
    ),
]


def records(path: Path, *lines: Mapping[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize(("task", "reads_pairs", "record", "item"), CASES)
def test_labelled_records_become_items(
    tmp_path: Path, task: str, reads_pairs: bool, record: Mapping[str, Any], item: HeldOut
) -> None:
    labels = ("0", "1") if reads_pairs else ()
    file = records(tmp_path / "own.jsonl", record, record)
    found = items_of_records(file, task, labels, reads_pairs=reads_pairs)
    assert found == [item]


def test_a_field_may_have_another_name(tmp_path: Path) -> None:
    file = records(tmp_path / "own.jsonl", {"text": "a", "stars": "good"})
    with pytest.raises(DataError, match="--field label"):
        items_of_records(file, "text-classification", (), reads_pairs=False)
    (item,) = items_of_records(file, "text-classification", (), reads_pairs=False, names={"label": "stars"})
    assert item.right == ("good",)


def test_labels_that_the_model_does_not_have_are_refused(tmp_path: Path) -> None:
    file = records(tmp_path / "own.jsonl", {"text": "a", "label": "5"})
    with pytest.raises(DataError, match="such as 5, and the model bad, good"):
        items_of_records(file, "text-classification", ("bad", "good"), reads_pairs=False)


def test_a_model_without_labels_takes_text_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--text FILE"):
        items_of_records(tmp_path / "own.jsonl", "fill-mask", (), reads_pairs=False)


def test_pairs_of_a_model_with_one_score_have_a_score(tmp_path: Path) -> None:
    file = records(tmp_path / "own.jsonl", {"sentence1": "a", "sentence2": "b", "score": 0.5})
    items = items_of_records(file, "text-classification", ("LABEL_0",), reads_pairs=True)
    assert items == [HeldOut(text="a", second="b", score=0.5)]


def test_the_order_of_a_text_decides_nothing(tmp_path: Path) -> None:
    found = []
    for name, lines in (("one", ["a b", "c d"]), ("other", ["c d", "a b"])):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(lines))
        found.append(items_of_texts(tmp_path / f"{name}.txt", source_of(tmp_path), "fill-mask"))
    assert found[0] == found[1]
    assert {item.text for item in found[0]} == {"a b", "c d"}
