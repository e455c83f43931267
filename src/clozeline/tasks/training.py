"""Prepare the training of a task: optimizer, schedule, and checkpoints that match exactly this run."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from clozeline.encoder.own import sources_of
from clozeline.params import FinetuneParams
from clozeline.processes.agreement import agreed
from clozeline.processes.group import Group
from clozeline.storage.fingerprints import code_of, fingerprint
from clozeline.tasks import depths, lora
from clozeline.tasks.best_look import BestLook, Plan
from clozeline.tasks.best_rate import BestRate
from clozeline.tasks.narrow_embedding import narrow
from clozeline.tasks.sharing import shared
from clozeline.tasks.task import StartsFitted, Task, TaskInputs
from clozeline.training.checkpoint import Checkpoints
from clozeline.training.distribution import Processes
from clozeline.training.hardware import Hardware
from clozeline.training.loop import Loop
from clozeline.training.micro_batches import MicroBatches
from clozeline.training.optimizers import build_optimizer
from clozeline.training.precision import Precision
from clozeline.training.schedule import Schedule

CODE = ("artifacts/finetune", "encoder", "records", "tasks", "tokenizer", "training", "words")
"""Folders and files of the package that decide the result; dvc.yaml names the same as dependencies of the stage."""
_LOG_EVERY_STEPS = 10


def use_threads(num_threads: int | None) -> None:
    """Set the number of torch threads; None means every core this process may use, or its share of them."""
    torch.set_num_threads(num_threads or Group.join().num_threads)


def prepare_training(task: Task, inputs: TaskInputs, work: Path) -> BestRate:
    """Return the training of a task at each learning rate: warm-up and linear decay to zero (Devlin et al. 2018,
    appendix A.2), with a checkpoint at each look.

    Raises:
        ParamsError: `frozen_layers` exceeds the encoder's layers, or the processor does not support the precision.
    """
    params = inputs.params
    plan = Plan(
        steps_per_epoch=task.batches_per_epoch,
        num_epochs=params.epochs,
        looks_per_epoch=params.looks_per_epoch,
        checkpoint_every_steps=params.checkpoint_every_steps,
        patience=params.patience,
    )
    schedule = Schedule.linear_to_zero(params.warmup_fraction, plan.total_steps)
    hardware = _hardware(params)
    _select_trained_weights(task, inputs)
    task.model.to(hardware.precision.device)
    fitted = task if plan.total_steps and isinstance(task, StartsFitted) else None
    if fitted is not None:
        fitted.fit_head()
    processes = hardware.processes
    name = agreed(processes, work, _fingerprint(inputs, hardware.precision, sources_of(task.model)))
    batches_from, loss_sum = shared(task, processes if plan.total_steps else Processes.alone())
    rate_of = None if params.layer_decay == 1 else depths.rate_by_depth(task.model, params.layer_decay)
    of_seed = f"seed-{inputs.seed}"

    def validation_score() -> float:
        return processes.of_the_first(task.validation_score())

    def at(factor: float) -> BestLook:
        optimizer = params.optimizer.times(factor)
        loop = Loop(
            model=task.model,
            optimizer=build_optimizer(task.model, optimizer, rate_of),
            batches_from=batches_from,
            loss_sum=loss_sum,
            fraction_at=schedule.fraction,
            total_steps=plan.total_steps,
            clip_norm=optimizer.clip_norm,
            log_every_steps=_LOG_EVERY_STEPS,
            # `BestLook` saves checkpoints, because they include the best weights; the loop itself saves none.
            checkpoint_every_steps=plan.total_steps + 1,
            checkpoints=Checkpoints.of(work, name, keep=1, part=f"{of_seed}/rate-{optimizer.learning_rate}"),
            hardware=hardware,
            seed=inputs.seed,
        )
        return BestLook(loop, plan, validation_score, optimizer.learning_rate, validates_start=fitted is not None)

    return BestRate([at(factor) for factor in params.rate_factors], work / name / of_seed)


def _hardware(params: FinetuneParams) -> Hardware[Any]:
    """Return the hardware of this process. Each process has the whole model: those of tasks fit on one device."""
    processes = replace(Processes.join(), sharding="ddp")
    precision = Precision.choose(params.precision, processes.device)
    return Hardware(processes, precision, MicroBatches.of(params, processes.device))


def _select_trained_weights(task: Task, inputs: TaskInputs) -> None:
    """Freeze layers or add adapters, and narrow the embedding, which `narrow_embedding.widen` restores."""
    model: Any = task.model
    if inputs.params.lora is not None:
        lora.add(model, inputs.params.lora, inputs.seed)
    elif inputs.params.frozen_layers is not None:
        depths.freeze(model, inputs.params.frozen_layers)
    narrow(model, (ids for rows in task.trained_on for ids in rows.ids_T))


def _fingerprint(inputs: TaskInputs, precision: Precision, own_code: Sequence[Path]) -> str:
    encoder = sorted(file for file in inputs.encoder.iterdir() if file.is_file())
    facts = {
        "params": inputs.params.model_dump(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "device": precision.device.type,
        "precision": precision.name,
        "num_threads": torch.get_num_threads() if precision.device.type == "cpu" else None,
    }
    return fingerprint(facts, [*files_of(inputs.data), *encoder, *code_of(CODE), *own_code])


def files_of(data: Path) -> list[Path]:
    """Return the files of a task's `data`, which is a file or a folder."""
    return sorted(file for file in data.rglob("*") if file.is_file()) if data.is_dir() else [data]
