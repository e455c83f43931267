"""Claim: every kind of task splits a batch that is too large for memory; if a single row is too large, the error names
the keys of that kind that help."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from clozeline.params.tasks import SECTIONS
from clozeline.system.errors import TrainingError
from clozeline.tasks.task import Task
from clozeline.tasks.training import prepare_training
from clozeline.training.micro_batches import remedies
from clozeline.training.state import Callback
from tests.make.params import is_knob_of, named_in
from tests.make.processes import run_alone
from tests.make.tasks import CASES, inputs_of, prepare, record, write_records
from tests.tasks.little_memory import losses

TRAINED = [kind for kind in CASES if kind != "zero_shot"]
FIRST = ("max_length", "frozen_layers", "lora")
CHANGED: list[tuple[Mapping[str, object], list[str]]] = [
    ({}, [*FIRST]),
    ({"frozen_layers": 1}, ["max_length"]),
    ({"lora": {"rank": 2, "alpha": 4, "dropout": 0.0}}, ["max_length"]),
]


def test_a_batch_too_large_for_main_memory_is_halved_with_the_same_result(small_encoder: Path, tmp_path: Path) -> None:
    """Pairs are the kind whose parts also read the rest of their batch."""
    write_records(tmp_path / "few.jsonl", (record(number, {}) for number in range(40)))
    write_records(tmp_path / "many.jsonl", (record(number, {}) for number in range(1200)))
    arguments = ("similarity", small_encoder, tmp_path / "few.jsonl", tmp_path / "many.jsonl")
    found = run_alone("tests.tasks.little_memory", *arguments)
    halved = [line for line in found["told"] if "out of memory" in line]
    assert halved, "memory did not run out, so nothing was tested"
    assert sum("out of memory" in line for line in found["told in all"]) == len(halved)
    assert found["little"] == pytest.approx(found["enough"], rel=1e-5)


@pytest.mark.parametrize("kind", TRAINED)
def test_halves_of_a_batch_give_the_loss_of_the_whole(
    kind: str, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data.jsonl"
    write_records(data, (record(number, {}) for number in range(120)))
    enough = losses(kind, small_encoder, data, batch_size=48)
    assert "out of memory" not in caplog.text
    task = type(prepare(kind, CASES[kind][0], small_encoder, data))
    whole = task.loss_sum

    def loss_sum(self: Task, inputs: Any) -> torch.Tensor:
        return without_end() if inputs.num_rows > 20 else whole(self, inputs)

    monkeypatch.setattr(task, "loss_sum", loss_sum)
    assert losses(kind, small_encoder, data, batch_size=48) == pytest.approx(enough, rel=1e-5)
    halved = [line for line in caplog.messages if "out of memory" in line]
    assert halved
    assert all(named_in(line) == ["micro_batch_tokens"] for line in halved)
    assert is_knob_of(SECTIONS[kind], "micro_batch_tokens")


def without_end(*_: object) -> torch.Tensor:
    """Request more memory than any machine has, so that torch raises its own error."""
    return torch.empty(1 << 50)


@pytest.mark.parametrize("kind", TRAINED)
def test_a_row_too_large_for_memory_is_refused_with_its_size_and_the_params_of_this_kind(
    kind: str, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(tmp_path / "data.jsonl", (record(number, {}) for number in range(40)))
    case = CASES[kind][0]
    task = prepare(kind, case, small_encoder, tmp_path / "data.jsonl")
    monkeypatch.setattr(type(task), "loss_sum", without_end)
    training = prepare_training(task, inputs_of(kind, case, small_encoder, tmp_path / "data.jsonl"), tmp_path / "work")
    with pytest.raises(TrainingError) as caught:
        training.chosen().run(Callback(), lambda look: None)
    assert "4,503,599,627,370,496 bytes were requested" in str(caught.value)
    assert "of epoch" in str(caught.value)
    assert named_in(str(caught.value)) == [*FIRST]
    assert all(is_knob_of(SECTIONS[kind], knob) for knob in FIRST)


@pytest.mark.parametrize("kind", TRAINED)
@pytest.mark.parametrize(("changes", "knobs"), CHANGED)
def test_remedies_leave_out_params_that_are_already_set(
    kind: str, changes: dict[str, object], knobs: list[str], tmp_path: Path
) -> None:
    params = inputs_of(kind, CASES[kind][0], tmp_path, tmp_path / "data.jsonl", **changes).params
    assert named_in(remedies(params)) == knobs


def test_pairs_that_are_cut_shorter_in_training_are_reported_at_that_length(tmp_path: Path) -> None:
    params = inputs_of("similarity", CASES["similarity"][0], tmp_path, tmp_path / "data.jsonl", train_length=16).params
    told = named_in(remedies(params))
    assert told == ["train_length", "frozen_layers", "lora"]
    assert all(is_knob_of(SECTIONS["similarity"], knob) for knob in told)
