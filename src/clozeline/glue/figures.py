"""Scores of GLUE's tasks over seeds, with intervals, and their average.

Shapes: S seeds, N rows of the dev part.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.record import MetricFile, Record
from clozeline.glue.tasks import GlueTask, glue_tasks
from clozeline.tasks.classification.scores import accuracy, f1_of, matthews
from clozeline.tasks.intervals import Range, bootstrap_interval
from clozeline.tasks.scores.correlations import pearson, spearman

Values = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


def _of_classes(figure: Callable[[Places, Places, int], float]) -> Callable[[Values, Values], float]:
    def compare(right_N: Values, answer_N: Values) -> float:
        right, answers = right_N.astype(np.int64), answer_N.astype(np.int64)
        return figure(right, answers, int(max(right.max(), answers.max(), 1)) + 1)

    return compare


METRICS: Mapping[str, Callable[[Values, Values], float]] = MappingProxyType(
    {
        "matthews": _of_classes(matthews),
        "accuracy": _of_classes(accuracy),
        "f1": _of_classes(f1_of(1)),
        "pearson": pearson,
        "spearman": spearman,
    }
)
"""Metrics of the tasks, of right labels or scores and answers; labels are numbers, and F1 is that of number 1."""


class Trained(MetricFile):
    """Answers of the model of one seed to the rows of a task's dev part: a file of the folder `results`."""

    parts: list[str]
    """Name of the part that each row is from."""
    right: list[float]
    answers: list[float]
    num_train: int
    num_validation: int
    seconds: float


class TaskFigures(Record):
    """Figures of one task on its dev part, means over seeds."""

    task: str
    title: str
    metrics: dict[str, float]
    """Each metric of each part: `f1`, or for a task of several parts `dev_matched accuracy`."""
    score: float
    """Mean of `metrics`, the task's contribution to GLUE's average."""
    score_of_seeds: tuple[float, ...]
    over_seeds: Range | None
    """Interval of the mean over other seeds, by Student's t; None for one seed."""
    over_rows: Range
    """Interval of the mean over other rows of the same kind, by the bootstrap."""
    num_train: int
    num_dev: int


class Average(Record):
    """Mean of the scores of several tasks."""

    tasks: tuple[str, ...]
    score: float
    over_seeds: Range | None
    over_rows: Range


class Figures(Record):
    """glue.json."""

    model: str
    seeds: tuple[int, ...]
    limit: int | None
    """Largest number of rows of each part that were used; null: all."""
    tasks: tuple[TaskFigures, ...]
    missing: tuple[str, ...]
    """Tasks of the average that were not measured; then there is no average."""
    average: Average | None
    """GLUE's average without WNLI, as most papers give it; null unless all its tasks were measured at full size."""
    average_with_wnli: Average | None
    """That of the leaderboard; null also without WNLI."""
    mean_of_measured: Average | None
    """Mean of the measured tasks but WNLI; no average of GLUE, and comparable only over the same tasks."""


def figures_of(task: GlueTask, of_seeds: Sequence[Trained]) -> TaskFigures:
    """Return the figures of a task. A correlation of constant answers counts as 0.

    The answers of all seeds are to the same rows in the same order, which no seed decides.
    """
    first = of_seeds[0]
    part_N, right_N = np.array(first.parts), np.array(first.right)
    answer_SN = np.array([one.answers for one in of_seeds])

    def metrics(answer_N: Values, rows: Places | slice) -> dict[str, float]:
        chosen = {part: part_N[rows] == part for part in task.parts}
        return {
            metric if len(task.parts) == 1 else f"{part} {metric}": _or_0(
                METRICS[metric](right_N[rows][is_of_part], answer_N[rows][is_of_part])
            )
            for part, is_of_part in chosen.items()
            for metric in task.metrics
            if is_of_part.any()
        }

    def scores(rows: Places | slice) -> tuple[float, ...]:
        return tuple(statistics.fmean(metrics(answer_N, rows).values()) for answer_N in answer_SN)

    found = [metrics(answer_N, slice(None)) for answer_N in answer_SN]
    score_of_seeds = scores(slice(None))
    low, high = bootstrap_interval(lambda rows: statistics.fmean(scores(rows)), len(part_N))
    return TaskFigures(
        task=task.name,
        title=task.title,
        metrics={name: statistics.fmean(of_seed[name] for of_seed in found) for name in found[0]},
        score=statistics.fmean(score_of_seeds),
        score_of_seeds=score_of_seeds,
        over_seeds=_over_seeds(score_of_seeds),
        over_rows=Range(low=low, high=high),
        num_train=first.num_train,
        num_dev=len(part_N),
    )


def summary(model: str, seeds: Sequence[int], limit: int | None, measured: Sequence[TaskFigures]) -> Figures:
    """Return all figures; no average is made of a part of the tasks, nor of a part of their rows."""
    by_name = {it.task: it for it in measured}
    averaged = [name for name, task in glue_tasks().items() if task.in_average]
    present = [by_name[name] for name in averaged if name in by_name]
    missing = [name for name in averaged if name not in by_name]
    is_whole = not missing and limit is None
    return Figures(
        model=model,
        seeds=tuple(seeds),
        limit=limit,
        tasks=tuple(measured),
        missing=tuple(missing),
        average=average_of(present) if is_whole else None,
        average_with_wnli=average_of(measured) if is_whole and len(measured) == len(glue_tasks()) else None,
        mean_of_measured=average_of(present) if present else None,
    )


def average_of(tasks: Sequence[TaskFigures]) -> Average:
    """Return the mean of the scores of tasks. Rows of different tasks are independent, so their variances add up."""
    score = statistics.fmean(it.score for it in tasks)
    half = math.hypot(*((it.over_rows.high - it.over_rows.low) / 2 for it in tasks)) / len(tasks)
    of_seeds = [statistics.fmean(scores) for scores in zip(*(it.score_of_seeds for it in tasks), strict=True)]
    return Average(
        tasks=tuple(it.task for it in tasks),
        score=score,
        over_seeds=_over_seeds(of_seeds),
        over_rows=Range(low=score - half, high=score + half),
    )


def _over_seeds(scores: Sequence[float]) -> Range | None:
    if len(scores) < 2:
        return None
    from scipy.stats import t

    half = float(t.ppf(0.975, len(scores) - 1)) * statistics.stdev(scores) / math.sqrt(len(scores))
    mean = statistics.fmean(scores)
    return Range(low=mean - half, high=mean + half)


def _or_0(value: float) -> float:
    return value if math.isfinite(value) else 0.0
