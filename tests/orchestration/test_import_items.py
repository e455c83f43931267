"""Claim: the built-in items make an exam for each kind of model, with answers that differ."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from clozeline.cli.evaluate import source_of
from clozeline.exporting.exams import Sample, exam_of
from clozeline.exporting.ladder import MIN_AGREEMENT_TEXTS, MIN_METRIC_ITEMS
from clozeline.inference.package import load
from clozeline.orchestration.import_items import are_built_in, built_in_items, items_of_records, items_of_texts
from clozeline.records.finetune.scored_items import EntitySpan, HeldOut
from clozeline.system.errors import DataError
from tests.make.packages import write_answerer, write_classifier, write_embedder, write_encoder, write_tagger

KINDS = [
    ("fill-mask", False),
    ("text-classification", True),
    ("question-answering", False),
    ("feature-extraction", False),
]


@pytest.mark.parametrize(("task", "reads_pairs"), KINDS)
def test_built_in_items_are_always_the_same_and_enough_for_the_gates(task: str, reads_pairs: bool) -> None:
    items = built_in_items(task, reads_pairs=reads_pairs)
    assert items == built_in_items(task, reads_pairs=reads_pairs)
    deciding = len({item.model_dump_json() for item in items}) * 7 // 8
    assert deciding >= max(MIN_METRIC_ITEMS, MIN_AGREEMENT_TEXTS)


def test_built_in_items_are_known_in_part_and_beside_others() -> None:
    items = built_in_items("question-answering", reads_pairs=False)
    assert are_built_in(items[5:], "question-answering", reads_pairs=False)
    assert not are_built_in([*items, HeldOut(text="q", right=("a",))], "question-answering", reads_pairs=False)


def test_the_answer_to_a_built_in_question_is_in_its_context() -> None:
    items = built_in_items("question-answering", reads_pairs=False)
    assert all(item.second and item.right[0] in item.second for item in items)


def test_the_score_of_a_pair_is_the_share_of_parts_that_are_equal() -> None:
    items = built_in_items("feature-extraction", reads_pairs=False)
    assert {item.score for item in items} == {place / 6 for place in range(7)}
    same = next(item for item in items if item.score == 1)
    one, other = ({word.strip(".,;:").lower() for word in text.split()} for text in (same.text, str(same.second)))
    assert one ^ other <= {"and"}


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


@pytest.mark.parametrize(
    ("write", "metric"),
    [
        (write_encoder, "masked-LM accuracy"),
        (write_classifier, "label agreement"),
        (write_tagger, "entity agreement"),
        (write_answerer, "answer F1"),
        (write_embedder, "Spearman correlation"),
    ],
)
def test_built_in_items_make_an_exam_for_the_kind(write: Callable[[Path], None], metric: str, tmp_path: Path) -> None:
    write(tmp_path / "package")
    model = load(tmp_path / "package", precision="fp32")
    items = built_in_items(model.manifest.task, reads_pairs=model.manifest.reads_pairs)[:40]
    sample = Sample([item.text for item in items], [None] * len(items), held_out=items)
    exam = exam_of(model, sample)
    assert exam.metric == metric
    assert exam.num_texts > 20
