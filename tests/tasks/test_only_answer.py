"""Claim: a model of any kind that gives every test item the same answer is detected from its answers."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from clozeline.tasks.question_answering import contexts
from clozeline.tasks.task import only_answer
from tests.make.tasks import EACH, Case, prepare, record, write_records

TRAINED = [(kind, case) for kind, case in EACH if kind != "zero_shot"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data.jsonl"


@pytest.mark.parametrize(("kind", "case"), TRAINED)
def test_a_model_with_zero_weights_is_reported_to_give_a_constant_answer(
    kind: str, case: Case, small_encoder: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(data, (record(number, case[1]) for number in range(80)))
    task: Any = prepare(kind, case, small_encoder, data)
    with torch.no_grad():
        for weight in task.model.parameters():
            weight.zero_()
    monkeypatch.setattr(contexts, "_margin", lambda questions, found: -math.inf)
    report = task.test()
    assert report.only_answer is not None


def test_a_constant_answer_is_a_fault_only_if_the_labels_differ() -> None:
    assert only_answer(["a", "a"], ["a", "a"]) is None
    assert only_answer(["a", "a"], ["a", "b"]) == "a"
    assert only_answer(["a", "b"], ["a", "a"]) is None
