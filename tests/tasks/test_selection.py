"""Claim: the hash of an item decides its split, and copies in the pre-training text are found."""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from clozeline.records.reading.streams import identity_of
from clozeline.tasks.classification import data as selection
from clozeline.tasks.formats import task_records
from clozeline.tasks.question_answering import data as questions
from clozeline.tasks.selection import ReasonCounts, Splits, count_seen, strictest
from clozeline.tasks.similarity import data as pairs
from clozeline.tasks.tagging import data as sentences
from tests.make.tasks import params_of, write_rows
from tests.make.texts import write_clean_text


def test_items_seen_in_pretraining_are_counted(tmp_path: Path) -> None:
    texts = ["a says 1", "a says 2", "b says 3"]
    seen = [texts[0].upper(), texts[1] + "\n", "another text", texts[0]]
    write_clean_text(tmp_path / "train.parquet", seen)
    assert count_seen(map(identity_of, texts), tmp_path / "train.parquet") == 2


def test_a_text_in_several_splits_stays_in_test_before_validation_before_train() -> None:
    assert strictest(["train", "validation", "test", "train"]) == "test"
    assert strictest(["train", "validation"]) == "validation"


def classified(folder: Path) -> None:
    file = folder / "labels.csv"
    good = [f"text number {number},{'ab'[number % 2]}" for number in range(60)]
    file.write_text("\n".join(["text,label", *good, ",a", "late,", "Text number 0,a", "both,a", "both,b"]) + "\n")
    params = params_of("classification")
    selection.select(task_records(params, file), params)


def tagged(folder: Path) -> None:
    good = [{"tokens": ["see", f"Rome{number}"], "ner_tags": ["O", "B-LOC"]} for number in range(60)]
    file = write_rows(folder / "tags.jsonl", [*good, {"tokens": [], "ner_tags": []}])
    sentences.select(task_records(params_of("tagging"), file), params_of("tagging"))


def asked(folder: Path) -> None:
    def paragraph(number: int, text: str, start: int) -> dict[str, object]:
        answers = [{"text": text, "answer_start": start}]
        return {"context": f"Context {number} says so.", "qas": [{"question": "What?", "answers": answers}]}

    whole = [paragraph(number, "says", len(f"Context {number} ")) for number in range(60)]
    paragraphs = [*whole, paragraph(60, "says", 3), paragraph(61, "absent", 0), paragraph(62, "absent", 0)]
    file = folder / "squad.json"
    file.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    questions.select(task_records(params_of("question_answering"), file), params_of("question_answering"))


def scored(folder: Path) -> None:
    file = folder / "sts.tsv"
    good = [f"{number % 6}\tone {number}\tother {number}" for number in range(60)]
    file.write_text("\n".join([*good, "\tlone\tpair", "", "\tlone\tagain", "2\t\tnothing"]) + "\n")
    params = params_of("similarity", columns=["score", "sentence1", "sentence2"], score_field="score")
    pairs.select(task_records(params, file), params)


LINES: Mapping[Callable[[Path], None], tuple[str, ...]] = {
    classified: (
        "records: 65 read, 60 used; left out: without text 1 (first: {}/labels.csv, line 62), "
        "without label 1 (first: {}/labels.csv, line 63), duplicates 1 (first: {}/labels.csv, line 64), "
        "contradictions 2 (first: {}/labels.csv, line 65)",
    ),
    tagged: ("records: 61 read, 60 used; left out: without words 1 (first: {}/tags.jsonl, line 61)",),
    asked: (
        "records: 63 read, 61 used; left out: without findable answer 2 "
        "(first: {}/squad.json, data[0].paragraphs[61].qas[0])",
        "answers that are not at their offset: "
        "moved 1 (first: {}/squad.json, data[0].paragraphs[60].qas[0]), "
        "not found 2 (first: {}/squad.json, data[0].paragraphs[61].qas[0])",
    ),
    scored: (
        "records: 63 read, 60 used; left out: without text 1 (first: {}/sts.tsv, line 64), "
        "without score 2 (first: {}/sts.tsv, line 61)",
    ),
}


@pytest.mark.parametrize("read", LINES, ids=lambda read: read.__name__)
def test_skipped_records_are_reported_with_reasons_and_first_places(
    read: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        read(tmp_path)
    assert caplog.messages == [line.replace("{}", str(tmp_path)) for line in LINES[read]]


def test_nothing_is_reported_if_every_record_is_used(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        found = Splits.of([], str, ReasonCounts.of_records("duplicates"))
    assert caplog.messages == []
    assert (found.count["num_read"], found.count["num_used"]) == (0, 0)
