"""Claim: a model of any kind that gives every test item the same answer is detected from its answers."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clozeline.records.finetune.task_metrics import ShownItem
from clozeline.records.words.shingles import contamination, in_batches
from clozeline.tasks.question_answering import contexts
from clozeline.tasks.report import HeadlineFigure, TaskReport, only_answer, shown
from tests.make.tasks import EACH, Case, prepare, record, text_of, write_rows


@pytest.mark.parametrize(("kind", "case"), [(kind, case) for kind, case in EACH if kind != "zero_shot"])
def test_a_model_with_zero_weights_is_reported_to_give_a_constant_answer(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_rows(tmp_path / "data.jsonl", (record(number, case[1]) for number in range(80)))
    task: Any = prepare(kind, case, small_encoder, data)
    with torch.no_grad():
        for weight in task.model.parameters():
            weight.zero_()
    monkeypatch.setattr(contexts, "_margin", lambda *found: -math.inf)
    assert task.test().only_answer is not None


@pytest.mark.parametrize(
    ("marks", "num_examples", "chosen"),
    [("+++-+-+-", 4, "0135"), ("++++++-", 4, "0126"), ("----+---", 4, "0124"), ("-+", 4, "01"), ("+-", 0, "")],
)
def test_equally_many_wrong_and_right_items_are_shown_in_order_if_there_are(
    marks: str, num_examples: int, chosen: str
) -> None:
    items = [ShownItem({"text": str(place)}, "a", "a", mark == "+") for place, mark in enumerate(marks)]
    assert "".join(item.given["text"] for item in shown(items, num_examples)) == chosen
    assert [only_answer(*both.split()) for both in ("aa aa", "aa ab", "ab aa")] == [None, "a", None]


def test_the_headline_on_some_items_has_their_figures_and_its_lead_is_paired() -> None:
    right_N, usual_N = np.array([1.0, 1, 0, 1] * 20), np.array([1.0, 0, 0, 1] * 20)
    ours, usual = (lambda place_N, of=of: float(of[place_N].mean()) for of in (right_N, usual_N))
    figure = HeadlineFigure("share", ours, ("usual", usual), ("nothing", lambda place_N: 0.0))
    whole, some = figure.on(range(80)), figure.on([0, 4, 8], {"other": ours})
    assert (whole.value, whole.baseline_value, whole.trivial_value) == (0.75, 0.5, 0)
    assert 0.6 < whole.low < 0.75 < whole.high < 0.9
    lead_low, lead_high = whole.lead_low or 0.0, whole.lead_high or 0.0
    assert 0.1 < lead_low < 0.25 < lead_high < 0.4 < whole.high - whole.low + 0.3
    assert (some.value, some.low, some.high, some.beside[0].value) == (1, 1, 1, 1)
    nothing = HeadlineFigure("correlation", lambda place_N: math.nan, ("usual", usual), ("no", ours), is_paired=False)
    assert (nothing.on([1]).value, nothing.on([1]).low, nothing.on([1]).lead_low) == (0, 0, None)


def shouted(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row of equal words in capitals, with a full stop after each text."""
    texts = {name: f"{row[name]}.".upper() for name in ("question", "text", "context")}
    words = texts["text"].split()
    return {**row, **texts, "tokens": words, "answers": {"text": [texts["context"].split()[0]], "answer_start": [0]}}


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_test_texts_seen_in_pre_training_and_near_duplicates_of_training_items_are_found(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path
) -> None:
    numbers = {"train": range(100), "validation": range(100, 120), "test": range(200, 230)}
    parts = {name: [record(number, case[1]) for number in of_part] for name, of_part in numbers.items()}
    others = parts["test"]
    parts["test"] = [*(shouted(row) for row in parts["train"][: len(others)]), *others]

    def report_on(parts: Mapping[str, Sequence[Mapping[str, object]]]) -> TaskReport:
        for name, rows in parts.items():
            write_rows(tmp_path / f"{name}.jsonl", rows)
        return prepare(kind, case, small_encoder, tmp_path, splits={it: f"{it}.jsonl" for it in parts}).test()

    report = report_on(parts)
    seen = [f"{text_of(number)} and more of it" for number in range(200, 230, 2)]
    for texts, num_found in (
        ([seen], len(seen)),
        (in_batches(report.train_texts), len(others) * (2 if "score_field" in case[0] else 1)),  # texts of a test item
    ):
        found = contamination(report.test_texts, texts)
        assert found.num_near_duplicates + found.num_contained == num_found
    assert report.headline_on is not None
    whole = report.headline_on(range(len(report.test_rows)))
    assert whole == report.headline.model_copy(update={"beside": whole.beside})
    near = contamination(report.test_rows, in_batches(report.train_rows)).place_of_near
    kept = [place for place in range(len(report.test_rows)) if place not in near]
    assert len(near) == len(kept) == len(others)
    apart = report.headline_on(kept)
    if "score_field" in case[0]:  # a correlation
        alone = report_on({**parts, "test": others}).headline
        assert (apart.value, apart.baseline_value) == pytest.approx((alone.value, alone.baseline_value))
    elif kind in ("question_answering", "similarity"):  # a mean over items
        assert apart.value + report.headline_on(near).value == pytest.approx(2 * report.headline.value)
