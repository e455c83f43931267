"""Claims: a task trains only the vectors of tokens in its training rows; its checkpoints depend only on its own
code.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clozeline
from clozeline.records.finetune.task_metrics import ValidationScore
from clozeline.tasks.training import BestValidation, ValidationPlan, best_of, prepare_training
from clozeline.training.checkpoints import Checkpoints
from clozeline.training.loop import Loop
from clozeline.training.state import Batch, Callback
from tests.make.tasks import CASES, inputs_of_case, prepare, record, write_rows
from tests.training.prepared import OPTIMIZER, plain_hardware


@pytest.mark.parametrize("changed", ["tasks/heads.py", "tokenizing/tokenizer/folder.py", "records/words/shingles.py"])
def test_other_params_or_edited_code_that_a_kind_uses_rename_its_checkpoints(
    changed: str, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no training resumes from them."""
    monkeypatch.setattr(clozeline, "__file__", str(tmp_path / "__init__.py"))
    for place in ("records/finetune/scored_items.py", changed):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    kind, case = "classification", CASES["classification"][0]
    data, names = write_rows(tmp_path / "data.jsonl", (record(number, {}) for number in range(80))), []
    for line, batch_size in (("one = 1\n", 16), ("one = 1\n", 16), ("one = 1\n", 8), ("one = 2\n", 8)):
        (tmp_path / changed).write_text(line, encoding="utf-8")
        task = prepare(kind, case, small_encoder, data, batch_size=batch_size)
        inputs = inputs_of_case(kind, case, small_encoder, data, batch_size=batch_size)
        names.append(prepare_training(task, inputs, tmp_path / "work").loop.checkpoints.fingerprint)
    assert names[0] == names[1]
    assert len(set(names)) == 3


STEPS_PER_EPOCH = 4
NUM_EPOCHS = 5
Score = Callable[[nn.Module, int], float]


class Killed(BaseException):
    pass


def batches_from(epoch: int, index: int) -> Iterator[Batch[Tensor]]:
    while True:
        for place in range(index, STEPS_PER_EPOCH):
            draw = torch.Generator().manual_seed(100 * epoch + place)
            yield Batch(epoch, place, torch.randn(3, 2, generator=draw), num_tokens=3, num_targets=3)
        epoch, index = epoch + 1, 0


def weights_of(model: nn.Module) -> list[Tensor]:
    return [weight.detach().clone() for weight in model.state_dict().values()]


def run(
    work: Path,
    score: Score,
    loss: Callable[[Tensor], Tensor] = torch.square,
    *,
    validates_start: bool = False,
    **changes: Any,
) -> tuple[list[ValidationScore], list[Tensor]]:
    """Train a linear model; `score` gets it and the number of earlier validation passes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5))
    asked = iter(range(100))
    loop = Loop(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.1),
        batches_from=batches_from,
        loss_sum=lambda inputs_B2: loss(model(inputs_B2)).sum(),
        fraction_at=lambda step: 1 / (step + 1),
        total_steps=NUM_EPOCHS * STEPS_PER_EPOCH,
        params=OPTIMIZER,
        log_every_steps=2,
        checkpoint_every_steps=1000,
        checkpoints=Checkpoints.of(work, "run", keep=1),
        hardware=plain_hardware(),
        seed=0,
    )
    plan = replace(ValidationPlan(STEPS_PER_EPOCH, NUM_EPOCHS, 1, None, None), **changes)
    training = BestValidation(loop, plan, lambda: score(model, next(asked)), 0.1, validates_start=validates_start)
    return training.run(Callback(), lambda validation: None).validations, weights_of(model)


def scores_of(*values: float, seen: list[list[Tensor]] | None = None) -> Score:
    """Return a score for each validation pass, and note the weights of each in `seen`."""

    def score(model: nn.Module, asked: int) -> float:
        if seen is not None:
            seen.append(weights_of(model))
        return values[asked]

    return score


def weight_sum(model: nn.Module, asked: int) -> float:
    return float(sum(weight.sum() for weight in model.state_dict().values()))


def are_equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ((1, 5, 2, 3, 4), 2),
        ((0, 3, 1, 3, 2), 2),
        ((0, 0, 0, 0, 0), 5),
        ((math.nan, 1, math.nan, 3, 3), 4),
        ((math.nan,) * 5, 5),
        ((3, 1, 2, 3, 0, 0), 1),  # six: the weights before the first step are validated too
        ((3, 1, 4, 3, 0, 0), 3),
    ],
)
def test_the_first_best_epoch_is_kept_or_the_last_if_none_improved(
    tmp_path: Path, scores: tuple[float, ...], best: int
) -> None:
    seen: list[list[Tensor]] = []
    points, weights = run(tmp_path, scores_of(*scores, seen=seen), validates_start=len(scores) == 6)
    assert [point.step for point in points] == [0, 4, 8, 12, 16, 20][-len(scores) :]
    assert [point.validation_score for point in points] == list(scores)
    assert [place for place, kept in enumerate(seen, start=1) if are_equal(weights, kept)] == [best]
    assert best_of(points) is points[best - 1]


@pytest.mark.parametrize("killed_after", [0, 2, 4])
def test_a_killed_run_resumes_and_ends_with_the_same_bytes(tmp_path: Path, killed_after: int) -> None:
    steps = iter(range(100))

    def killed_once(model: nn.Module, asked: int) -> float:
        if asked == killed_after:
            raise Killed
        return weight_sum(model, asked)

    def killed_at_step_14(outputs: Tensor) -> Tensor:
        if next(steps) == 14:
            raise Killed
        return outputs.square()

    whole, weights = run(tmp_path / "whole", weight_sum)
    with pytest.raises(Killed):
        run(tmp_path / "parts", killed_once)
    judged: list[int] = []
    points, resumed = run(tmp_path / "parts", lambda model, asked: judged.append(asked) or weight_sum(model, 0))
    assert (points, len(judged)) == (whole, NUM_EPOCHS - killed_after)
    assert are_equal(resumed, weights)

    with pytest.raises(Killed):  # between two validation passes
        run(tmp_path / "between", weight_sum, killed_at_step_14, checkpoint_every_steps=3)
    assert [saved.name for saved in (tmp_path / "between" / "run").iterdir()] == ["step-000000012"]
    points, resumed = run(tmp_path / "between", weight_sum, checkpoint_every_steps=3)
    assert points == whole
    assert are_equal(resumed, weights)


@pytest.mark.parametrize(("patience", "num_passes"), [(None, 5), (2, 4)])
def test_a_training_without_improvement_stops_and_a_finished_one_is_not_continued(
    tmp_path: Path, patience: int | None, num_passes: int
) -> None:
    seen: list[list[Tensor]] = []
    validations, weights = run(tmp_path, scores_of(1, 3, 2, 2.5, 0, seen=seen), patience=patience)
    assert len(validations) == num_passes
    assert are_equal(weights, seen[1])
    again = run(tmp_path, scores_of(), patience=patience)
    assert again[0] == validations
    assert are_equal(again[1], weights)


def test_validation_passes_are_evenly_spaced_and_close_each_epoch(tmp_path: Path) -> None:
    validations, _ = run(tmp_path, weight_sum, validations_per_epoch=2)
    assert [validation.step for validation in validations] == [*range(2, 21, 2)]
    assert [validation.epoch for validation in validations[:3]] == [0.5, 1.0, 1.5]
    assert ValidationPlan(5, 1, 3, None, None).validation_steps == [2, 4, 5]
    assert ValidationPlan(1, 2, 7, None, None).validation_steps == [1, 2]
