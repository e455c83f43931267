"""Claim: our training loop is right where transformers' own Trainer is wrong. Each test shows both."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

from clozeline.encoder.model import EncoderModel
from clozeline.language.objectives import OBJECTIVES, TargetBatch
from clozeline.pretraining.job import Pretraining
from clozeline.pretraining.losses import TargetLoss
from clozeline.system.errors import ParamsError, TrainingError
from clozeline.training.micro_batches import MicroBatches, Precision
from clozeline.training.state import Batch, Callback, State
from clozeline.training.steps import Steps
from tests.training.prepared import CPU, OPTIMIZER, Killed, KillsAt, Prepare, plain_hardware


def trainer(model: nn.Module, rows: Sequence[Any], folder: Path, collator: Any = None, **arguments: Any) -> Trainer:
    """Return a trainer that trains and evaluates on `rows`; `arguments` are those of `TrainingArguments`."""
    settings: dict[str, Any] = {"save_strategy": "no", "seed": 1, **arguments}
    settings |= {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "dataloader_pin_memory": False}
    arguments_of_theirs = TrainingArguments(output_dir=str(folder), **settings)
    made = Trainer(model, arguments_of_theirs, train_dataset=rows, eval_dataset=rows, data_collator=collator)
    made.remove_callback(PrinterCallback)
    return made


def stock_of(model: Any, folder: Path) -> Any:
    """Return the model as stock transformers opens it, in training mode."""
    folder.mkdir(parents=True)
    model.save(folder)
    return AutoModelForMaskedLM.from_pretrained(folder, local_files_only=True).train()


def ours_of(stock: Any) -> EncoderModel:
    """Return our model with the weights of `stock`, by our names and in our order."""
    return EncoderModel.loaded(stock.config, "mlm", stock.state_dict())[0]


def rows_of(batch: TargetBatch) -> list[dict[str, Tensor]]:
    """Return the rows of `batch` as `Trainer` takes them: labels are -100 except at targets."""
    labels_BL = torch.full_like(batch.input_ids_BL, -100)
    labels_BL.view(-1)[batch.slot_T] = batch.labels_T
    mask_BL = batch.attention_mask_BL
    if mask_BL is None:
        mask_BL = torch.ones_like(batch.input_ids_BL)
    names = ("input_ids", "attention_mask", "labels")
    return [dict(zip(names, row, strict=True)) for row in zip(batch.input_ids_BL, mask_BL, labels_BL, strict=True)]


# Weights change by their gradient, and by nothing else.
PLAIN = {"optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}


@pytest.fixture
def prepare(prepare: Prepare) -> Prepare:
    """Runs of a tiny BERT, the stock architecture."""
    return prepare.but(model__family="bert")


def collator(tokenizer: Path, **settings: Any) -> DataCollatorForLanguageModeling:
    return DataCollatorForLanguageModeling(AutoTokenizer.from_pretrained(tokenizer, local_files_only=True), **settings)


def unmasked_rows(job: Pretraining, count: int) -> list[dict[str, list[int]]]:
    shards = job.validation.shards
    return [{"input_ids": shards.document(place)[:30].tolist()} for place in range(count)]


def weights(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    return float((weights(one) - weights(other)).abs().max())


def trained_on(job: Pretraining, *batches: Batch[TargetBatch]) -> State:
    """Return the state after all steps of `job`, with these batches in every epoch."""

    def batches_from(epoch: int, index: int) -> Iterator[Batch[TargetBatch]]:
        return iter(batches)

    return replace(job.loop, batches_from=batches_from).run(State(), Callback())


def test_a_batch_without_targets_is_skipped_but_theirs_takes_a_step(prepare: Prepare, tmp_path: Path) -> None:
    """P1: transformers' loss of the batch is NaN; its trainer omits it from the log, and lets the weights decay."""
    small = {"batch_tokens": 32, "masking__mask_rate": 0.02, "steps": 2, "schedule__warmup_fraction": 0.5}
    whole, spared = prepare(**small), prepare(**small)
    their_model = stock_of(whole.model, tmp_path / "stock")
    batches = list(zip(range(60), whole.loop.batches_from(0, 0), strict=False))
    empty = next(batch for _, batch in batches if batch.num_targets == 0)
    asked = [batch for _, batch in batches if batch.num_targets][:2]

    their_trainer = trainer(
        their_model, rows_of(empty.inputs), tmp_path, max_steps=1, logging_steps=1, weight_decay=0.1, learning_rate=0.1
    )
    their_trainer.train()
    assert their_model(**{name: row[None] for name, row in rows_of(empty.inputs)[0].items()}).loss.isnan()
    assert [entry["loss"] for entry in their_trainer.state.log_history if "loss" in entry] == [0.0]
    assert largest_difference(ours_of(their_model), whole.model) > 1e-4

    state = trained_on(whole, empty, asked[0], empty, asked[1])
    assert (state.num_empty_batches, state.step) == (2, 2)
    trained_on(spared, *asked)
    assert largest_difference(whole.model, spared.model) == 0.0


def test_nan_weights_stop_a_training_but_not_theirs(prepare: Prepare, tmp_path: Path) -> None:
    """P26: transformers logs a NaN loss as 0, and trains to the end."""
    job = prepare()
    with torch.no_grad():
        next(job.model.parameters()).fill_(torch.nan)
    rows = rows_of(next(job.loop.batches_from(0, 0)).inputs)
    their_trainer = trainer(stock_of(job.model, tmp_path / "stock"), rows, tmp_path, max_steps=2, logging_steps=1)
    their_trainer.train()
    assert [entry["loss"] for entry in their_trainer.state.log_history if "loss" in entry] == [0.0, 0.0]
    with pytest.raises(TrainingError, match="step 0, on batch 0 of epoch 0"):
        job.run()


def gradient_by_ours(model: nn.Module, batch: Batch[TargetBatch], most_slots: int | None) -> Tensor:
    taught: Any = deepcopy(model)
    hardware = replace(plain_hardware(), micro_batches=MicroBatches(most_slots, CPU))
    optimizer = torch.optim.SGD(taught.parameters(), lr=1.0)
    unclipped = OPTIMIZER.model_copy(update={"clip_norm": 1e9})
    Steps(taught, optimizer, TargetLoss(taught), unclipped, hardware, seed=0).take(batch, step=0)
    return weights(model) - weights(taught)


def gradient_by_theirs(model: nn.Module, batch: Batch[TargetBatch], rows_at_once: int, folder: Path) -> Tensor:
    taught, rows = stock_of(model, folder / f"stock-{rows_at_once}"), rows_of(batch.inputs)
    parts = {"per_device_train_batch_size": rows_at_once, "gradient_accumulation_steps": -(-len(rows) // rows_at_once)}
    trainer(taught, rows, folder, max_steps=1, **parts, **PLAIN).train()
    return weights(model) - weights(ours_of(taught))


def test_micro_batches_give_the_gradient_of_the_whole_batch_but_theirs_do_not(prepare: Prepare, tmp_path: Path) -> None:
    """P21: transformers averages the means of the parts, though each part has another number of targets.

    This holds for 4.57.6; in 5.23 the gradient of BERT is as many times too large as there are parts.
    """
    job = prepare()
    batch = next(job.loop.batches_from(0, 0))
    whole = gradient_by_ours(job.model, batch, None)

    def off(gradient: Tensor) -> float:
        return float((gradient - whole).norm() / whole.norm())

    assert off(gradient_by_theirs(job.model, batch, len(batch.inputs.input_ids_BL), tmp_path)) < 1e-5
    assert off(gradient_by_theirs(job.model, batch, 2, tmp_path)) > 0.01
    assert off(gradient_by_ours(job.model, batch, 64)) < 1e-5


def test_a_resumed_training_equals_an_uninterrupted_one_but_theirs_does_not(prepare: Prepare, tmp_path: Path) -> None:
    """P29: transformers makes the first batch after a resume with the random state of a new process."""
    brief = {"steps": 4, "schedule__warmup_fraction": 0.25, "log_every_steps": 1, "checkpoint_every_steps": 2}
    whole, killed, resumed = (prepare(work, **brief) for work in ("whole", "killed", "killed"))
    rows, start = unmasked_rows(whole, 16), stock_of(whole.model, tmp_path / "stock")

    def theirs(folder: str, resume_from: Path | None = None) -> nn.Module:
        model = deepcopy(start)
        saving = {"max_steps": 4, "per_device_train_batch_size": 2, "save_strategy": "steps", "save_steps": 2}
        made = trainer(model, rows, tmp_path / folder, collator(prepare.tokenizer), learning_rate=1e-3, **saving)
        made.train(resume_from_checkpoint=resume_from and str(resume_from))
        return model

    their_whole = theirs("one")
    assert largest_difference(their_whole, theirs("two")) == 0.0
    assert largest_difference(their_whole, theirs("three", tmp_path / "one" / "checkpoint-2")) > 1e-4

    whole.run()
    with pytest.raises(Killed):
        killed.run([KillsAt(3)])
    assert resumed.run().step == 4
    assert largest_difference(whole.model, resumed.model) == 0.0


@pytest.mark.parametrize("seed", [None, 3])
def test_repeated_validation_of_one_model_agrees_but_theirs_does_not(prepare, tmp_path, seed: int | None) -> None:
    """P32: transformers hides other tokens in each evaluation, even if its collator has a seed."""
    job = prepare(validation__every_steps=10)
    job.model.eval()
    stock = stock_of(job.model, tmp_path / "stock")
    their_trainer = trainer(stock, unmasked_rows(job, 20), tmp_path, collator(prepare.tokenizer, seed=seed))
    one, other = (their_trainer.evaluate()["eval_loss"] for _ in range(2))
    assert abs(one - other) > 1e-4
    assert replace(job.judge).measure() == replace(job.judge).measure()  # each measurement builds its batches again


def test_the_validation_loss_does_not_depend_on_batch_size_but_theirs_does(prepare: Prepare, tmp_path: Path) -> None:
    """P33: both evaluations hide the same tokens, but transformers averages the means of its batches."""
    job = prepare(model__initializer_range=0.5)
    model: Any = job.model.eval()
    every_row = job.validation.read(np.arange(len(job.validation.rows)))
    whole = OBJECTIVES["mlm"].evaluation_batch(job.validation, every_row, 1, 0, 7)
    stock = stock_of(model, tmp_path / "stock")
    right = TargetLoss(model)(whole).loss_sum.item() / len(whole.labels_T)

    def theirs(num_rows: int) -> float:
        made = trainer(stock, rows_of(whole), tmp_path, per_device_eval_batch_size=num_rows)
        return float(made.evaluate()["eval_loss"])

    assert theirs(whole.num_rows) == pytest.approx(right, rel=1e-5)
    assert abs(theirs(8) - right) > 1e-3
    assert abs(theirs(8) - theirs(16)) > 1e-3
    for batch_tokens in (32, 256, 10_000):
        assert replace(job.judge, batch_tokens=batch_tokens).measure().loss == pytest.approx(right, rel=1e-5)


def test_slow_bf16_is_refused_but_theirs_accepts_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """P28: on a CPU without instructions for it."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # transformers sets it
    assert TrainingArguments(str(tmp_path), use_cpu=True, bf16=True, report_to="none").bf16
    with pytest.raises(ParamsError, match="27 times slower"):
        Precision.choose("bf16", CPU)
