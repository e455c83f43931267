"""Claim: every kind of task counts the test texts that the encoder was pre-trained on, and knows its headline without
those that it was fine-tuned on."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from clozeline.records.words.shingles import contamination, in_batches
from clozeline.tasks.task import TaskReport
from tests.make.tasks import EACH, Case, prepare, record, text_of, write_records

SHARING = [(kind, case) for kind, case in EACH if kind in ("question_answering", "similarity")]
"""Kinds whose test items share texts."""


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_only_test_texts_seen_in_pre_training_are_found(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path
) -> None:
    write_records(tmp_path / "data.jsonl", (record(number, case[1]) for number in range(200)))
    report = prepare(kind, case, small_encoder, tmp_path / "data.jsonl").test()
    seen = {text_of(number) for number in range(0, 200, 2)}
    num_seen = sum(any(text in whole for text in seen) for whole in report.test_texts)
    found = contamination(report.test_texts, [[f"{text} and more of it" for text in sorted(seen)]])
    assert found.num_texts >= 40
    assert found.num_near_duplicates + found.num_contained == num_seen > 10
    if report.headline_on is not None:
        whole = report.headline_on(range(len(report.test_rows)))
        assert whole == report.headline.model_copy(update={"beside": whole.beside})


NUMBERS = {"train": range(100), "validation": range(100, 120), "test": range(200, 230)}


def given_parts(
    parts: Mapping[str, Sequence[Mapping[str, object]]], kind: str, case: Case, encoder: Path, folder: Path
) -> TaskReport:
    for part, rows in parts.items():
        write_records(folder / f"{part}.jsonl", rows)
    return prepare(kind, case, encoder, folder, splits={part: f"{part}.jsonl" for part in parts}).test()


def shouted(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row of equal words in capitals, with a full stop after each text."""
    texts = {name: f"{row[name]}.".upper() for name in ("question", "text", "context")}
    first_word = texts["context"].split()[0]
    return {**row, **texts, "answers": {"text": [first_word], "answer_start": [0]}}


@pytest.mark.parametrize(("kind", "case"), SHARING)
def test_the_headline_without_near_duplicates_is_that_of_the_other_items(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path
) -> None:
    parts = {name: [record(number, case[1]) for number in numbers] for name, numbers in NUMBERS.items()}
    others = parts["test"]
    parts["test"] = [*(shouted(row) for row in parts["train"][: len(others)]), *others]
    report = given_parts(parts, kind, case, small_encoder, tmp_path)
    assert report.headline_on is not None
    near = contamination(report.test_rows, in_batches(report.train_rows)).place_of_near
    kept = [place for place in range(len(report.test_rows)) if place not in near]
    assert len(near) == len(kept) == len(others)
    apart = report.headline_on(kept)
    if "score_field" in case[0]:  # a correlation
        alone = given_parts({**parts, "test": others}, kind, case, small_encoder, tmp_path)
        assert apart.value == pytest.approx(alone.headline.value)
        assert apart.baseline_value == pytest.approx(alone.headline.baseline_value)
    else:  # a mean over items
        assert apart.value + report.headline_on(near).value == pytest.approx(2 * report.headline.value)
    if kind == "question_answering":
        assert len({report.headline_on([place]).value for place in kept}) > 1, "each has its own"
