"""A run of GLUE: fine-tuning for each task from several seeds, scores with intervals, and their average.

Each is trained as stage `finetune` trains; a finished one is kept and not done again. All faults of data and params
come first.

Shapes: S seeds, N rows of the dev part.
"""

import logging
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from scipy.special import stdtrit

from clozeline.encoder.own import sources_of_family
from clozeline.lab.glue_data import DEV, TRAIN, Files, GlueTask, found_in, glue_tasks, part_of_texts, write_records
from clozeline.params.pretraining import laid_over
from clozeline.params.project import Params
from clozeline.params.reading import default_tree, params_in, read_tree
from clozeline.params.tasks import FinetuneParams
from clozeline.records import clean_text, record
from clozeline.records.finetune.scored_items import pearson, spearman
from clozeline.records.finetune.statistics import Interval, bootstrap_interval
from clozeline.stages.finetune import watched
from clozeline.system.errors import ArtifactError, DataError, ParamsError
from clozeline.system.files import code_of, fingerprint
from clozeline.tasks.classification.scores import accuracy, f1_of, matthews
from clozeline.tasks.heads import folder_of
from clozeline.tasks.kinds import train_each
from clozeline.tasks.task import TaskInputs
from clozeline.tasks.training import CODE, files_of, use_threads

Values = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
_LOG = logging.getLogger(__name__)
_NO_TEXT = "no-text.parquet"
PARAMS = Path("params.yaml")
OWN_ENCODER = Path("models/encoder")
# Learning rate of a published encoder (Devlin et al. 2018, appendix A.3): that of params.yaml is for ours.
_RATE_OF_PUBLISHED = 5e-5
FIGURES = "glue.json"
_SET_HERE = {"kind", "data", "hub", "splits", "num_seeds"}


def _of_classes(figure: Callable[[Places, Places, int], float]) -> Callable[[Values, Values], float]:
    def compare(right_N: Values, answer_N: Values) -> float:
        right, answers = right_N.astype(np.int64), answer_N.astype(np.int64)
        return figure(right, answers, int(max(right.max(), answers.max(), 1)) + 1)

    return compare


# Metrics of the tasks, of right labels or scores and answers; labels are numbers, and F1 is that of number 1.
METRICS: Mapping[str, Callable[[Values, Values], float]] = {
    "matthews": _of_classes(matthews),
    "accuracy": _of_classes(accuracy),
    "f1": _of_classes(f1_of(1)),
    "pearson": pearson,
    "spearman": spearman,
}


class Trained(record.MetricFile):
    """Answers of the model of one seed to the rows of a task's dev part: a file of the folder `results`."""

    parts: list[str]  # name of the part that each row is from
    right: list[float]
    answers: list[float]
    num_train: int


class TaskFigures(record.Record):
    """Figures of one task on its dev part, means over seeds."""

    task: str
    title: str
    metrics: dict[str, float]  # each metric of each part: `f1`, or for a task of several parts `dev_matched accuracy`
    score: float  # mean of `metrics`, the task's contribution to GLUE's average
    score_of_seeds: tuple[float, ...]
    over_seeds: Interval | None  # interval of the mean over other seeds, by Student's t; None for one seed
    over_rows: Interval  # interval of the mean over other rows of the same kind, by the bootstrap
    num_train: int
    num_dev: int


class Average(record.Record):
    """Mean of the scores of several tasks."""

    tasks: tuple[str, ...]
    score: float
    over_seeds: Interval | None
    over_rows: Interval


class GlueFigures(record.Record):
    """glue.json."""

    model: str
    seeds: tuple[int, ...]
    limit: int | None  # largest number of rows of each part that were used; null: all
    tasks: tuple[TaskFigures, ...]
    missing: tuple[str, ...]  # tasks of the average that were not measured; then there is no average
    # GLUE's average without WNLI, as most papers give it; null unless all its tasks were measured at full size.
    average: Average | None
    average_with_wnli: Average | None  # that of the leaderboard; null also without WNLI
    # Mean of the measured tasks but WNLI; no average of GLUE, and comparable only over the same tasks.
    mean_of_measured: Average | None


def figures_of(task: GlueTask, of_seeds: Sequence[Trained]) -> TaskFigures:
    """Return the figures of a task. A correlation of constant answers counts as 0.

    The answers of all seeds are to the same rows in the same order, which no seed decides.
    """
    first = of_seeds[0]
    part_N, right_N = np.array(first.parts), np.array(first.right)
    answer_SN = np.array([one.answers for one in of_seeds])

    def metrics(answer_N: Values, rows: Places | slice) -> dict[str, float]:
        values = {}
        for part in task.parts:
            is_of_part = part_N[rows] == part
            for metric in task.metrics if is_of_part.any() else ():
                value = METRICS[metric](right_N[rows][is_of_part], answer_N[rows][is_of_part])
                name = metric if len(task.parts) == 1 else f"{part} {metric}"
                values[name] = value if math.isfinite(value) else 0.0
        return values

    def scores(rows: Places | slice) -> tuple[float, ...]:
        return tuple(statistics.fmean(metrics(answer_N, rows).values()) for answer_N in answer_SN)

    every, score_of_seeds = [metrics(answer_N, slice(None)) for answer_N in answer_SN], scores(slice(None))
    low, high = bootstrap_interval(lambda rows: statistics.fmean(scores(rows)), len(part_N))
    return TaskFigures(
        task=task.name,
        title=task.title,
        metrics={name: statistics.fmean(of_seed[name] for of_seed in every) for name in every[0]},
        score=statistics.fmean(score_of_seeds),
        score_of_seeds=score_of_seeds,
        over_seeds=_mean_interval(score_of_seeds),
        over_rows=Interval(low=low, high=high),
        num_train=first.num_train,
        num_dev=len(part_N),
    )


def summary(model: str, seeds: Sequence[int], limit: int | None, measured: Sequence[TaskFigures]) -> GlueFigures:
    """Return all figures; no average is made of a part of the tasks, nor of a part of their rows."""
    by_name = {it.task: it for it in measured}
    averaged = [name for name, task in glue_tasks().items() if task.in_average]
    present = [by_name[name] for name in averaged if name in by_name]
    missing = [name for name in averaged if name not in by_name]
    is_whole = not missing and limit is None
    return GlueFigures(
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
        over_seeds=_mean_interval(of_seeds),
        over_rows=Interval(low=score - half, high=score + half),
    )


def _mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the 95 % interval of the mean of values, such as a figure by seed (Student 1908); None for one value."""
    if len(values) < 2:
        return None
    middle = statistics.fmean(values)
    half = float(stdtrit(len(values) - 1, 0.975)) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(low=middle - half, high=middle + half)


@dataclass(frozen=True)
class GlueRun:
    """What a run of GLUE is asked to do."""

    data: Path
    model: str
    tasks: Sequence[GlueTask]
    is_each_needed: bool  # whether each of `tasks` has to be in `data`; otherwise those that are there
    num_seeds: int
    limit: int | None  # largest number of rows of each part that are used; None: all
    knobs: Mapping[str, Any]  # values for the sections of the tasks, as under `finetune` in params.yaml
    work: Path  # folder of the converted data, checkpoints and results

    @cached_property
    def encoder(self) -> Path:
        """Folder of the model.

        Raises:
            ArtifactError: there is no such encoder.
        """
        folder = folder_of(self.model, None, "the model of --model")
        if not (folder / "config.json").is_file():
            raise ArtifactError(
                f"{folder} holds no model: there is no {folder / 'config.json'}",
                do="run `clozeline run` first, or name the folder or hub name of a model with --model",
            )
        return folder

    def data_of(self, task: GlueTask) -> Path:
        """Return the folder of a task's converted data."""
        return self.work / "data" / task.name


def trained(task: GlueTask, params: FinetuneParams, seed: int, run: GlueRun, family: str) -> Trained:
    """Return the answers of the model trained from this seed; those of an earlier call if nothing changed since.

    `family`: `pretrain.model.family` of the project, which opens your own encoder.

    Raises:
        ArtifactError, DataError, ParamsError, TrainingError: as in `train_each`.
    """
    data, code = run.data_of(task), [*code_of(CODE), *sources_of_family(family)]
    key = fingerprint({"params": params.model_dump(), "seed": seed}, [*files_of(data), *files_of(run.encoder), *code])
    kept = run.work / "results" / f"{task.name}-{seed}-{key}.json"
    if kept.is_file():
        _LOG.info("%s, seed %d: finished before, read from %s", task.title, seed, kept)
        return Trained.read(kept)
    nothing = run.work / _NO_TEXT
    if not nothing.is_file():
        pq.write_table(clean_text.SCHEMA.empty_table(), nothing)
    use_threads(params.num_threads)
    inputs = TaskInputs(params, seed, run.encoder, data, nothing, family)
    work = run.work / "training" / f"{task.name}-{seed}"
    (finished,) = train_each(inputs, work, partial(watched, f"{task.title}, seed {seed}", 1))
    report = finished.report
    number = {label: float(place) for place, label in enumerate(task.labels)}
    answered = [(number[right], number[answer]) for right, answer in report.confusion] if task.labels else report.scores
    part_of = part_of_texts(data, task) if len(task.parts) > 1 else {}
    found = Trained(
        parts=[part_of[text] for text in report.test_texts] if part_of else [*task.parts] * len(answered),
        right=[right for right, _ in answered],
        answers=[answer for _, answer in answered],
        num_train=int(str(report.figures["num_train"])),
    )
    kept.parent.mkdir(parents=True, exist_ok=True)
    found.write(kept)
    finished.forget()
    return found


def run(asked: GlueRun) -> tuple[GlueFigures, Path]:
    """Fine-tune and evaluate each task from each seed; return the figures, and the file that they were written to.

    Raises:
        ArtifactError: there is no such encoder.
        DataError: the data have none of the tasks, or cannot be read.
        ParamsError: a knob is unknown or does not fit the encoder.
    """
    found = _found(asked)
    _ = asked.encoder  # a missing one is told before the data are converted
    for task, files in found:
        num = write_records(task, files, asked.data_of(task), asked.limit)
        _LOG.info("%s: %s", task.title, ", ".join(f"{rows:,} {part} rows" for part, rows in num.items()))
    params = _params(asked, [task for task, _ in found])
    seeds = range(params.seed, params.seed + asked.num_seeds)
    measured = []
    for task, _ in found:
        section, family = params.finetune[task.name], params.pretrain.model.family
        measured.append(figures_of(task, [trained(task, section, seed, asked, family) for seed in seeds]))
        _LOG.info("%s: score %.3f", task.title, measured[-1].score)
    figures = summary(asked.model, seeds, asked.limit, measured)
    out = asked.work / asked.model.strip("./").replace("/", "-") / FIGURES
    out.parent.mkdir(parents=True, exist_ok=True)
    figures.write(out)
    return figures, out


def _found(asked: GlueRun) -> list[tuple[GlueTask, Files]]:
    if not asked.data.is_dir():
        raise DataError(
            f"there is no folder {asked.data}, with a folder for each task of GLUE",
            do="correct the path; with a network: `hf download nyu-mll/glue --repo-type dataset --local-dir FOLDER`",
        )
    found = [(task, found_in(asked.data, task)) for task in asked.tasks]
    there = [(task, files) for task, files in found if files is not None]
    missing = [task.name for task, files in found if files is None]
    if not there or (missing and asked.is_each_needed):
        folders = ", ".join(sorted(it.name for it in asked.data.iterdir() if it.is_dir())) or "none"
        raise DataError(
            f"{asked.data} lacks {', '.join(missing) if there else 'every task'} of GLUE; its folders: {folders}",
            do="rename the folders as in the official archive or on the hub "
            f"({', '.join(f'{task.title} or {task.name}' for task in asked.tasks)}), or name other tasks with --tasks",
        )
    return there


def _params(asked: GlueRun, tasks: Sequence[GlueTask]) -> Params:
    """Return the params of params.yaml, or our defaults outside a project, with a section for each task: its preset,
    read from the converted files, under the user's knobs.
    """
    tree = read_tree(PARAMS) if PARAMS.is_file() else default_tree()
    is_own = Path(asked.model) == OWN_ENCODER
    if ours := sorted(asked.knobs.keys() & _SET_HERE):
        raise ParamsError(
            f"--set changes what the command itself sets: {', '.join(ours)}",
            do="use --seeds for the number of trainings, and FOLDER for the data",
        )
    knobs = asked.knobs if is_own else laid_over({"optimizer": {"learning_rate": _RATE_OF_PUBLISHED}}, asked.knobs)
    splits = {"train": f"{TRAIN}.jsonl", "validation": None, "test": f"{DEV}.jsonl"}
    local = {"hub": None, "splits": splits, "num_seeds": 1, "num_examples": 0}
    sections = {
        task.name: laid_over({**tree["presets"][task.preset], "data": str(asked.data_of(task)), **local}, knobs)
        for task in tasks
    }
    return params_in({**tree, "finetune": sections, "export": {**tree["export"], "models": {}}}, PARAMS)
