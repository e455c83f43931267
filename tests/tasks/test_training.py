"""Claims: a task trains only the vectors of tokens in its training rows; its checkpoints depend only on its own
code."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clozeline
from clozeline.records.finetune.task_metrics import ValidationScore
from clozeline.system.errors import TrainingError
from clozeline.tasks.kinds import train_each
from clozeline.tasks.rows import EncodedBatch
from clozeline.tasks.task import Task
from clozeline.tasks.training import BestValidation, ValidationPlan, best_of, prepare_training
from clozeline.training.checkpoints import Checkpoints
from clozeline.training.loop import Loop
from clozeline.training.state import Batch, Callback
from tests.make.models import small_bert
from tests.make.tasks import CASES, EACH, Case, inputs_of_case, keep_last_weights, prepare, record, write_rows
from tests.training.prepared import OPTIMIZER, plain_hardware


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_a_task_reports_every_token_that_it_trains_on(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path
) -> None:
    write_rows(tmp_path / "data.jsonl", (record(number, case[1]) for number in range(80)))
    task = prepare(kind, case, small_encoder, tmp_path / "data.jsonl")
    batches = islice(task.batches_from(0, 0), task.batches_per_epoch)
    brought = {token for batch in batches for rows in encoded_in(batch.inputs) for token in tokens_in(rows)}
    assert brought == tokens_of(task)
    assert bool(brought) == (kind != "zero_shot")


def encoded_in(inputs: Any) -> list[EncodedBatch]:
    return [inputs.firsts, inputs.seconds] if hasattr(inputs, "seconds") else [inputs]


def tokens_in(rows: EncodedBatch) -> list[int]:
    mask_BL = rows.attention_mask_BL
    ids = rows.input_ids_BL.flatten() if mask_BL is None else rows.input_ids_BL[mask_BL.bool()]
    return ids.tolist()


def tokens_of(task: Task) -> set[int]:
    return {token for rows in task.trained_on for ids in rows.ids_T for token in ids.tolist()}


def test_embeddings_of_words_outside_the_training_texts_stay_unchanged(
    save_trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import BertForMaskedLM

    keep_last_weights(monkeypatch)
    torch.manual_seed(0)
    encoder = save_trained(BertForMaskedLM(small_bert()))
    case = CASES["classification"][0]
    write_rows(tmp_path / "data.jsonl", (record(number, case[1]) for number in range(80)))
    inputs = inputs_of_case("classification", case, encoder, tmp_path / "data.jsonl", epochs=1)
    assert inputs.params.optimizer.weight_decay > 0
    before = table_of(prepare("classification", case, encoder, tmp_path / "data.jsonl")).clone()
    finished = next(
        train_each(inputs, tmp_path / "work", lambda it, seed: it.chosen().run(Callback(), lambda validation: None))
    )
    has_changed = (table_of(finished.task) != before).any(dim=1)
    assert set(has_changed.nonzero().flatten().tolist()) == tokens_of(finished.task)


def table_of(task: Any) -> torch.Tensor:
    table: torch.Tensor = task.model.get_input_embeddings().weight.detach()
    return table


@pytest.mark.parametrize("changed", ["tasks/heads.py", "tokenizing/tokenizer/folder.py", "records/words/shingles.py"])
def test_editing_code_that_a_kind_uses_renames_its_checkpoints(
    changed: str, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clozeline, "__file__", str(tmp_path / "__init__.py"))
    for place in ("records/finetune/scored_items.py", changed):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    kind, (case, *_) = "classification", CASES["classification"]
    write_rows(tmp_path / "data.jsonl", (record(number, case[1]) for number in range(80)))
    inputs = inputs_of_case(kind, case, small_encoder, tmp_path / "data.jsonl")
    names = []
    for line in ("one = 1\n", "one = 1\n", "one = 2\n"):
        (tmp_path / changed).write_text(line, encoding="utf-8")
        task = prepare(kind, case, small_encoder, tmp_path / "data.jsonl")
        names.append(prepare_training(task, inputs, tmp_path / "work").loop.checkpoints.fingerprint)
    assert names[0] == names[1] != names[2]


STEPS_PER_EPOCH = 4
NUM_EPOCHS = 5


class Killed(BaseException):
    pass


def batches_from(epoch: int, index: int) -> Iterator[Batch[Tensor]]:
    while True:
        for place in range(index, STEPS_PER_EPOCH):
            draw = torch.Generator().manual_seed(100 * epoch + place)
            yield Batch(epoch, place, torch.randn(3, 2, generator=draw), num_tokens=3, num_targets=3)
        epoch, index = epoch + 1, 0


def training(
    work: Path,
    score: Callable[[nn.Module, int], float],
    loss: Callable[[Tensor], Tensor] = torch.square,
    *,
    validations_per_epoch: int = 1,
    checkpoint_every_steps: int | None = None,
    patience: int | None = None,
) -> tuple[BestValidation, nn.Module]:
    """Linear model in training; `score` gets the model and the number of earlier validation passes."""
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
    plan = ValidationPlan(STEPS_PER_EPOCH, NUM_EPOCHS, validations_per_epoch, checkpoint_every_steps, patience)
    return BestValidation(loop, plan, lambda: score(model, next(asked)), learning_rate=0.1), model


def run(
    work: Path, score: Callable[[nn.Module, int], float], **plan: int | None
) -> tuple[list[ValidationScore], list[Tensor]]:
    best_validation, model = training(work, score, **plan)
    validations = best_validation.run(Callback(), lambda validation: None).validations
    return validations, [weight.detach().clone() for weight in model.state_dict().values()]


def scores_of(*values: float) -> Callable[[nn.Module, int], float]:
    return lambda model, asked: values[asked]


def weight_sum(model: nn.Module, asked: int) -> float:
    return float(sum(weight.sum() for weight in model.state_dict().values()))


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ((1, 5, 2, 3, 4), 2),
        ((1, 2, 3, 4, 5), 5),
        ((0, 3, 1, 3, 2), 2),
        ((0, 0, 0, 0, 0), 5),
        ((math.nan, math.nan, math.nan, math.nan, math.nan), 5),
        ((3, 3, 3, 1, 3), 3),
        ((0, 0, 0, 0, 1), 5),
    ],
)
def test_the_first_best_epoch_is_kept_or_the_last_if_none_improved(
    tmp_path: Path, scores: tuple[float, ...], best: int
) -> None:
    seen: list[list[Tensor]] = []

    def judge(model: nn.Module, asked: int) -> float:
        seen.append([weight.clone() for weight in model.state_dict().values()])
        return scores[asked]

    points, weights = run(tmp_path, judge)
    assert [point.validation_score for point in points] == list(scores)
    assert [point.step for point in points] == [4, 8, 12, 16, 20]
    torch.testing.assert_close(weights, seen[best - 1], rtol=0, atol=0)
    assert not all(torch.equal(one, other) for one, other in zip(weights, seen[best % NUM_EPOCHS], strict=True))


@pytest.mark.parametrize(("scores", "best"), [((3, 1, 2, 3, 0, 0), 0), ((3, 1, 4, 3, 0, 0), 8)])
def test_the_weights_before_the_first_step_are_kept_unless_later_ones_are_better(
    tmp_path: Path, scores: tuple[float, ...], best: int
) -> None:
    best_validation, model = training(tmp_path, scores_of(*scores))
    before = [weight.clone() for weight in model.state_dict().values()]
    validations = replace(best_validation, validates_start=True).run(Callback(), lambda validation: None).validations
    assert [validation.step for validation in validations] == [0, 4, 8, 12, 16, 20]
    assert best_of(validations).step == best
    after = model.state_dict().values()
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True)) == (best == 0)


@pytest.mark.parametrize("killed_after", range(NUM_EPOCHS))
def test_a_killed_run_resumes_and_ends_with_the_same_bytes(tmp_path: Path, killed_after: int) -> None:
    def killed_once(model: nn.Module, asked: int) -> float:
        if asked == killed_after:
            raise Killed
        return weight_sum(model, asked)

    whole_points, whole_weights = run(tmp_path / "whole", weight_sum)
    with pytest.raises(Killed):
        run(tmp_path / "parts", killed_once)
    epochs_judged = []
    points, weights = run(tmp_path / "parts", lambda model, asked: epochs_judged.append(asked) or weight_sum(model, 0))
    assert points == whole_points
    assert len(epochs_judged) == NUM_EPOCHS - killed_after
    torch.testing.assert_close(weights, whole_weights, rtol=0, atol=0)


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first = run(tmp_path, scores_of(1, 5, 2, 3, 4))
    again = run(tmp_path, scores_of())
    assert again[0] == first[0]
    torch.testing.assert_close(again[1], first[1], rtol=0, atol=0)


def test_a_nan_loss_stops_the_run(tmp_path: Path) -> None:
    best_validation, _ = training(tmp_path, weight_sum, loss=lambda outputs: outputs * float("nan"))
    with pytest.raises(TrainingError, match="diverged at step 0"):
        best_validation.run(Callback(), lambda point: None)


def test_validation_passes_are_evenly_spaced_and_close_each_epoch(tmp_path: Path) -> None:
    validations, _ = run(tmp_path, weight_sum, validations_per_epoch=2)
    assert [validation.step for validation in validations] == [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    assert [validation.epoch for validation in validations[:3]] == [0.5, 1.0, 1.5]
    assert ValidationPlan(5, 1, 3, None, None).validation_steps == [2, 4, 5]
    assert ValidationPlan(1, 2, 7, None, None).validation_steps == [1, 2]


def test_a_training_without_improvement_stops_and_keeps_the_best_weights(tmp_path: Path) -> None:
    seen: list[list[Tensor]] = []

    def judge(model: nn.Module, asked: int) -> float:
        seen.append([weight.clone() for weight in model.state_dict().values()])
        return (1, 3, 2, 2.5, 9)[asked]

    validations, weights = run(tmp_path, judge, patience=2)
    assert [validation.validation_score for validation in validations] == [1, 3, 2, 2.5]
    torch.testing.assert_close(weights, seen[1], rtol=0, atol=0)
    assert run(tmp_path, scores_of(), patience=2)[0] == validations, "a stopped run is not continued"


def test_a_killed_run_resumes_from_a_checkpoint_between_two_validation_passes(tmp_path: Path) -> None:
    plan = {"checkpoint_every_steps": 3}
    whole_validations, whole_weights = run(tmp_path / "whole", weight_sum, **plan)
    steps = iter(range(100))

    def killed_at_step_14(outputs: Tensor) -> Tensor:
        if next(steps) == 14:
            raise Killed
        return outputs.square()

    first, _ = training(tmp_path / "parts", weight_sum, killed_at_step_14, **plan)
    with pytest.raises(Killed):
        first.run(Callback(), lambda validation: None)
    assert [saved.name for saved in (tmp_path / "parts" / "run").iterdir()] == ["step-000000012"]
    validations, weights = run(tmp_path / "parts", weight_sum, **plan)
    assert validations == whole_validations
    torch.testing.assert_close(weights, whole_weights, rtol=0, atol=0)
    torch.testing.assert_close(weights, run(tmp_path / "none", weight_sum)[1], rtol=0, atol=0)


def test_a_nan_score_loses_to_any_number() -> None:
    validations = [
        ValidationScore(place, place, score) for place, score in enumerate([float("nan"), 0.1, float("nan"), 0.3, 0.3])
    ]
    assert best_of(validations) is validations[3]
    assert best_of(validations[:1]) is validations[0]
