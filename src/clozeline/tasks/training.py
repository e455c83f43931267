"""A task made ready to train: optimizer, schedule, checkpoints of exactly this run."""

import os
from pathlib import Path

import torch

import clozeline
from clozeline.tasks.best_epoch import BestEpoch
from clozeline.tasks.task import Task, TaskInputs
from clozeline.training.checkpoint import Checkpoints, fingerprint
from clozeline.training.hardware import Hardware
from clozeline.training.loop import Loop
from clozeline.training.optimizers import build_optimizer
from clozeline.training.schedule import Schedule

_CODE = ("model", "tasks", "tokens", "training")
"""Rooms whose code decides the result."""
_LOG_EVERY_STEPS = 10


def use_threads(num_threads: int | None) -> None:
    """None: every core this process may use."""
    torch.set_num_threads(num_threads or len(os.sched_getaffinity(0)))


def prepare_training(task: Task, inputs: TaskInputs, work: Path) -> BestEpoch:
    """Warm-up and linear decay to zero (Devlin et al. 2018, appendix A.2), a checkpoint after each epoch."""
    params = inputs.params
    total_steps = params.epochs * task.batches_per_epoch
    schedule = Schedule.linear_to_zero(round(params.warmup_fraction * total_steps), total_steps)
    loop = Loop(
        model=task.model,
        optimizer=build_optimizer(task.model, params.optimizer),
        batches_from=task.batches_from,
        loss_sum=task.loss_sum,
        fraction_at=schedule.fraction,
        total_steps=total_steps,
        clip_norm=params.optimizer.clip_norm,
        log_every_steps=_LOG_EVERY_STEPS,
        # Best weights belong to a checkpoint too, so `BestEpoch` saves it, and the loop none.
        checkpoint_every_steps=total_steps + 1,
        checkpoints=Checkpoints.of(work, _fingerprint(inputs), keep=1),
        hardware=Hardware.plain(),
        seed=inputs.seed,
    )
    return BestEpoch(loop, task.batches_per_epoch, params.epochs, task.validation_score)


def _fingerprint(inputs: TaskInputs) -> str:
    package = Path(clozeline.__file__).parent
    code = [file for room in _CODE for file in sorted((package / room).rglob("*.py"))]
    encoder = sorted(file for file in inputs.encoder.iterdir() if file.is_file())
    facts = {
        "params": inputs.params.model_dump(),
        "seed": inputs.seed,
        "torch": torch.__version__,
        "num_threads": torch.get_num_threads(),
    }
    return fingerprint(facts, [*_files_of(inputs.data), *encoder, *code])


def _files_of(data: Path) -> list[Path]:
    return sorted(file for file in data.rglob("*") if file.is_file()) if data.is_dir() else [data]
