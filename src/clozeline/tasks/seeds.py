"""Train a task from one or several seeds, select the best, and measure how much the figure varies by chance."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clozeline.artifacts.finetune.plots import ScoredLook
from clozeline.artifacts.finetune.task_metrics import OverSeeds
from clozeline.tasks import lora
from clozeline.tasks.best_look import Trained, best_of
from clozeline.tasks.best_rate import BestRate
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.narrow_embedding import widen
from clozeline.tasks.task import StartsFitted, Task, TaskInputs, TaskReport
from clozeline.tasks.training import prepare_training

Watched = Callable[[BestRate, int], Trained]
"""Function that trains with one seed and shows the progress."""


@dataclass(frozen=True)
class Finished:
    """One finished training run with its test report.

    `task` holds the weights of the best validation pass, with adapters merged.
    """

    seed: int
    task: Task
    trained: Trained
    report: TaskReport
    forget: Callable[[], None]
    """Function that removes the checkpoints."""

    @property
    def best(self) -> ScoredLook:
        """Validation pass whose weights `task` holds."""
        return best_of(self.trained.looks)


def over_seeds(best_seed: int, values: Sequence[float]) -> OverSeeds:
    """Return the headline figure on the test split over all seeds. Its spread measures chance, not the model."""
    return OverSeeds(
        num_seeds=len(values),
        best_seed=best_seed,
        mean=statistics.fmean(values),
        deviation=statistics.stdev(values),
        lowest=min(values),
        highest=max(values),
    )


def train_one(inputs: TaskInputs, seed: int, work: Path, run: Watched) -> None:
    """Train from one seed and leave the checkpoint of the finished training, from which `train_each` goes on.

    Raises:
        ArtifactError, DataError, ParamsError, TrainingError: as in `TaskKind.prepare` and `BestLook.run`.
    """
    _, training = _prepared(inputs, seed, work)
    run(training, seed)


def train_each(inputs: TaskInputs, work: Path, run: Watched) -> Iterator[Finished]:
    """Train from each seed, starting with `inputs.seed`, and yield each finished training; of several processes that
    train together, only the first one tests the models and yields.

    The caller removes the checkpoints of a finished training. Until then, a restarted run resumes from them.

    Raises:
        ArtifactError, DataError, ParamsError, TrainingError: as in `TaskKind.prepare` and `BestLook.run`.
    """
    for seed in seeds_of(inputs):
        task, training = _prepared(inputs, seed, work)
        trained = run(training, seed)
        if not training.loop.hardware.processes.is_first:
            continue
        lora.merge(task.model)
        widen(task.model)
        report = task.test()
        if trained.learning_rate is not None and best_of(trained.looks).step == 0 and isinstance(task, StartsFitted):
            report = replace(report, headline=report.headline.model_copy(update={"method": task.fitted}))
        yield Finished(seed, task, trained, report, training.forget)


def seeds_of(inputs: TaskInputs) -> range:
    return range(inputs.seed, inputs.seed + inputs.params.num_seeds)


def _prepared(inputs: TaskInputs, seed: int, work: Path) -> tuple[Task, BestRate]:
    seeded = replace(inputs, seed=seed)
    task = KINDS[inputs.params.kind].prepare(seeded)
    return task, prepare_training(task, seeded, work)


def is_better(one: Finished, other: Finished | None) -> bool:
    """Return whether `one` replaces `other`: a higher validation score does, and any training replaces NaN."""
    if other is None or math.isnan(other.best.validation_score):
        return True
    return one.best.validation_score > other.best.validation_score
