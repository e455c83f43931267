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
from tests.make import packages

TEXTS, TAGS = "text-classification", "token-classification"
ANSWERS, VECTORS = "question-answering", "feature-extraction"


@pytest.mark.parametrize(
    ("task", "reads_pairs"), [("fill-mask", False), (TEXTS, True), (ANSWERS, False), (VECTORS, False)]
)
def test_built_in_items_are_always_the_same_and_enough_for_the_gates(task: str, reads_pairs: bool) -> None:
    items = built_in_items(task, reads_pairs=reads_pairs)
    assert items == built_in_items(task, reads_pairs=reads_pairs)
    deciding = len({item.model_dump_json() for item in items}) * 7 // 8
    assert deciding >= max(MIN_METRIC_ITEMS, MIN_AGREEMENT_TEXTS)
    assert are_built_in(items[5:], task, reads_pairs=reads_pairs)
    assert not are_built_in([*items, HeldOut(text="q", right=("a",))], task, reads_pairs=reads_pairs)


def test_the_score_of_a_built_in_pair_is_the_share_of_parts_that_are_equal_and_an_answer_is_in_its_context() -> None:
    items = built_in_items(VECTORS, reads_pairs=False)
    assert {item.score for item in items} == {place / 6 for place in range(7)}
    same = next(item for item in items if item.score == 1)
    one, other = ({word.strip(".,;:").lower() for word in text.split()} for text in (same.text, str(same.second)))
    assert one ^ other <= {"and"}
    assert all(item.second and item.right[0] in item.second for item in built_in_items(ANSWERS, reads_pairs=False))


TAGGED = {"tokens": ["in", "New", "York"], "ner_tags": ["O", "B-LOC", "I-LOC"]}
NEW_YORK = HeldOut(text="in New York", entities=(EntitySpan(start=3, end=11, type="LOC"),))
ASKED = {"question": "q", "context": "c d", "answers": {"text": ["d"], "answer_start": [2]}}
SCORED = {"sentence1": "a", "sentence2": "b", "score": "4.5"}


def records(path: Path, *lines: Mapping[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("task", "labels", "reads_pairs", "record", "item"),
    [
        (TEXTS, (), False, {"text": "a", "label": "good"}, HeldOut(text="a", right=("good",))),
        (TEXTS, ("LABEL_0",), True, SCORED, HeldOut(text="a", second="b", score=4.5)),
        (VECTORS, (), False, SCORED, HeldOut(text="a", second="b", score=4.5)),
        (TAGS, (), False, TAGGED, NEW_YORK),
        (ANSWERS, (), False, ASKED, HeldOut(text="q", second="c d", right=("d",))),
    ],
)
def test_labelled_records_become_items(
    tmp_path: Path, task: str, labels: tuple[str, ...], reads_pairs: bool, record: Mapping[str, Any], item: HeldOut
) -> None:
    file = records(tmp_path / "own.jsonl", record, record)
    assert items_of_records(file, task, labels, reads_pairs=reads_pairs) == [item]


@pytest.mark.parametrize(
    ("task", "labels", "record", "told"),
    [
        (TEXTS, (), {"text": "a", "stars": "good"}, "--field label"),
        (TEXTS, ("bad", "good"), {"text": "a", "label": "5"}, "such as 5, and the model bad, good"),
        (TEXTS, (), {"text": "", "label": "5"}, "holds no items"),
        (TAGS, (), TAGGED | {"tokens": ["in"]}, "ner_tags"),
    ],
)
def test_labels_that_the_model_does_not_have_are_refused(
    tmp_path: Path, task: str, labels: tuple[str, ...], record: Mapping[str, Any], told: str
) -> None:
    with pytest.raises(DataError, match=told):
        items_of_records(records(tmp_path / "own.jsonl", record), task, labels, reads_pairs=False)


def test_items_of_a_text_do_not_depend_on_its_order_and_a_field_may_have_another_name(tmp_path: Path) -> None:
    found = []
    for name, text in (("one", "a b\n\nc d"), ("other", "c d\n\na b")):
        (tmp_path / f"{name}.txt").write_text(text)
        found.append(items_of_texts(tmp_path / f"{name}.txt", source_of(tmp_path), "fill-mask"))
    assert found[0] == found[1]
    assert {item.text for item in found[0]} == {"a b", "c d"}
    file = records(tmp_path / "own.jsonl", {"text": "a", "stars": "good"})
    (item,) = items_of_records(file, TEXTS, (), reads_pairs=False, names={"label": "stars"})
    assert item.right == ("good",)


@pytest.mark.parametrize(
    ("write", "metric"),
    [
        (packages.write_encoder, "masked-LM accuracy"),
        (packages.write_tagger, "entity agreement"),
        (packages.write_answerer, "answer F1"),
        (packages.write_embedder, "Spearman correlation"),
    ],
)
def test_built_in_items_make_an_exam_for_the_kind(write: Callable[[Path], None], metric: str, tmp_path: Path) -> None:
    write(tmp_path / "package")
    model = load(tmp_path / "package", precision="fp32")
    items = built_in_items(model.manifest.task, reads_pairs=model.manifest.reads_pairs)[:40]
    exam = exam_of(model, Sample([item.text for item in items], [None] * len(items), held_out=items))
    assert exam.metric == metric
    assert exam.num_texts > 20
