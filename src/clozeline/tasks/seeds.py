"""A task trained from one seed or from several: which of them is kept, and how much chance there is in its figure."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clozeline.artifacts.task_metrics import OverSeeds
from clozeline.tasks import lora
from clozeline.tasks.best_look import BestLook, Look, best_of
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.narrow_embedding import widen
from clozeline.tasks.task import Task, TaskInputs, TaskReport
from clozeline.tasks.training import prepare_training
from clozeline.training.checkpoint import Checkpoints

Watched = Callable[[BestLook, int], list[Look]]
"""Runs a training, with its seed, and shows it."""


@dataclass(frozen=True)
class Finished:
    """One training, judged; `task` has the weights of its best look, as plain ones."""

    seed: int
    task: Task
    best: Look
    report: TaskReport
    checkpoints: Checkpoints


def over_seeds(best_seed: int, values: Sequence[float]) -> OverSeeds:
    """The headline figure on the test part, over all seeds: its spread is chance, and no property of the model."""
    return OverSeeds(
        num_seeds=len(values),
        best_seed=best_seed,
        mean=statistics.fmean(values),
        deviation=statistics.stdev(values),
        lowest=min(values),
        highest=max(values),
    )


def train_each(inputs: TaskInputs, work: Path, run: Watched) -> Iterator[Finished]:
    """Train from each seed: `inputs.seed` and those after it. What is finished is kept until its checkpoints are
    removed, so that a run that was killed begins again at the seed that it was at.

    Raises:
        ArtifactError, DataError, ParamsError, TrainingError: as the task's kind and its training do.
    """
    for seed in range(inputs.seed, inputs.seed + inputs.params.num_seeds):
        seeded = replace(inputs, seed=seed)
        task = KINDS[inputs.params.kind].prepare(seeded)
        training = prepare_training(task, seeded, work)
        looks = run(training, seed)
        lora.merge(task.model)
        widen(task.model)
        yield Finished(seed, task, best_of(looks), task.test(), training.loop.checkpoints)


def is_better(one: Finished, other: Finished | None) -> bool:
    """By the validation part alone; of equal ones the first stays."""
    if other is None or math.isnan(other.best.validation_score):
        return True
    return one.best.validation_score > other.best.validation_score
