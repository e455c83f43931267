"""Claim: the hash of an item decides its split, and copies in the pre-training text are found."""

import json
import logging
from pathlib import Path

import pytest

from clozeline.records.reading.streams import identity_of
from clozeline.tasks.classification import data as texts
from clozeline.tasks.formats import task_records
from clozeline.tasks.question_answering import data as questions
from clozeline.tasks.selection import ReasonCounts, Splits, count_seen, strictest
from tests.make.tasks import params_of
from tests.make.texts import write_clean_text


def test_items_seen_in_pretraining_are_counted(tmp_path: Path) -> None:
    items = ["a says 1", "a says 2", "b says 3"]
    write_clean_text(tmp_path / "train.parquet", [items[0].upper(), items[1] + "\n", "another text", items[0]])
    assert count_seen(map(identity_of, items), tmp_path / "train.parquet") == 2


def test_a_text_in_several_splits_stays_in_test_before_validation_before_train() -> None:
    assert strictest(["train", "validation", "test", "train"]) == "test"
    assert strictest(["train", "validation"]) == "validation"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def test_skipped_records_are_reported_with_reasons_and_first_places(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "labels.csv"
    good = [f"text number {number},{'ab'[number % 2]}" for number in range(60)]
    file.write_text("\n".join(["text,label", *good, ",a", "late,", "Text number 0,a", "both,a", "both,b"]) + "\n")
    params = params_of("classification")
    texts.select(task_records(params, file), params)
    reasons = {"without text 1": 62, "without label 1": 63, "duplicates 1": 64, "contradictions 2": 65}
    told = ", ".join(f"{reason} (first: {file}, line {line})" for reason, line in reasons.items())
    assert log.messages == [f"records: 65 read, 60 used; left out: {told}"]


def test_answers_that_are_not_at_their_offset_are_reported_with_their_first_places(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "squad.json"
    answers = [("says", len(f"Context {number} ")) for number in range(60)]
    paragraphs = [
        {
            "context": f"Context {number} says so.",
            "qas": [{"question": "What?", "answers": [{"text": text, "answer_start": start}]}],
        }
        for number, (text, start) in enumerate([*answers, ("says", 3), ("absent", 0), ("absent", 0)])
    ]
    file.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    params = params_of("question_answering")
    questions.select(task_records(params, file), params)
    places = [f"(first: {file}, data[0].paragraphs[{number}].qas[0])" for number in (60, 61)]
    assert log.messages[1].endswith(f"moved 1 {places[0]}, not found 2 {places[1]}")


def test_nothing_is_reported_if_every_record_is_used(log: pytest.LogCaptureFixture) -> None:
    found = Splits.of([], str, ReasonCounts.of_records("duplicates"))
    assert log.messages == []
    assert (found.count["num_read"], found.count["num_used"]) == (0, 0)
