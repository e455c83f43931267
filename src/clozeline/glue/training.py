"""Fine-tuning for one task from one seed, as stage `finetune` trains; a finished one is kept and not done again."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from clozeline.artifacts.preprocess.clean_text import SCHEMA
from clozeline.artifacts.record import MetricFile
from clozeline.encoder.own_code import sources_of_family
from clozeline.glue.figures import Answers
from clozeline.glue.files import DEV, TRAIN, part_of_texts
from clozeline.glue.tasks import GlueTask
from clozeline.params import FinetuneParams
from clozeline.params.recipes import laid_over
from clozeline.stages.finetune import watched
from clozeline.storage.fingerprints import code_of, fingerprint
from clozeline.tasks.seeds import train_each
from clozeline.tasks.task import TaskInputs, TaskReport
from clozeline.tasks.training import CODE, files_of, use_threads

_LOG = logging.getLogger(__name__)
_NO_TEXT = "no-text.parquet"


class Trained(MetricFile):
    """Answers of one trained model: a file of the folder `results`."""

    parts: list[str]
    right: list[float]
    answers: list[float]
    num_train: int
    num_validation: int
    seconds: float


@dataclass(frozen=True)
class Place:
    """The encoder, and the folder that holds converted data, checkpoints and results."""

    encoder: Path
    work: Path
    family: str | None = None
    """`pretrain.model.family` of the project, which opens your own encoder; None: outside a project."""

    def data_of(self, task: GlueTask) -> Path:
        """Return the folder of a task's converted data."""
        return self.work / "data" / task.name


def section_of(task: GlueTask, preset: Mapping[str, Any], data: Path, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's section of params.yaml: its preset, read from the converted files, under the user's knobs."""
    splits = {"train": f"{TRAIN}.jsonl", "validation": None, "test": f"{DEV}.jsonl"}
    local = {"data": str(data), "hub": None, "splits": splits, "num_seeds": 1, "num_examples": 0}
    return laid_over({**preset, **local}, knobs)


def trained(task: GlueTask, params: FinetuneParams, seed: int, place: Place) -> Trained:
    """Return the answers of the model trained from this seed; those of an earlier call if nothing changed since.

    Raises:
        ArtifactError, DataError, ParamsError, TrainingError: as in `train_each`.
    """
    data = place.data_of(task)
    facts = {"params": params.model_dump(), "seed": seed}
    code = [*code_of(CODE), *sources_of_family(place.family or "")]
    key = fingerprint(facts, [*files_of(data), *files_of(place.encoder), *code])
    kept = place.work / "results" / f"{task.name}-{seed}-{key}.json"
    if kept.is_file():
        _LOG.info("%s, seed %d: finished before, read from %s", task.title, seed, kept)
        return Trained.read(kept)
    nothing = place.work / _NO_TEXT
    if not nothing.is_file():
        pq.write_table(SCHEMA.empty_table(), nothing)
    use_threads(params.num_threads)
    started = time.monotonic()
    inputs = TaskInputs(params, seed, place.encoder, data, nothing, place.family)
    work = place.work / "training" / f"{task.name}-{seed}"
    (finished,) = train_each(inputs, work, partial(watched, f"{task.title}, seed {seed}", 1))
    report = finished.report
    right, answers = _numbers(task, report)
    figures = report.figures
    found = Trained(
        parts=_parts(task, data, report, len(right)),
        right=right,
        answers=answers,
        num_train=int(str(figures["num_train"])),
        num_validation=int(str(figures["num_validation"])),
        seconds=time.monotonic() - started,
    )
    kept.parent.mkdir(parents=True, exist_ok=True)
    found.write(kept)
    finished.forget()
    return found


def together(of_seeds: Sequence[Trained]) -> Answers:
    """Return the answers of all seeds; they are to the same rows in the same order, which no seed decides."""
    first = of_seeds[0]
    return Answers(first.parts, np.array(first.right), np.array([it.answers for it in of_seeds]))


def _parts(task: GlueTask, data: Path, report: TaskReport, num_rows: int) -> list[str]:
    """Return the part of each row that was answered."""
    if len(task.parts) == 1:
        return [*task.parts] * num_rows
    part_of = part_of_texts(data, task)
    return [part_of[text] for text in report.test_texts]


def _numbers(task: GlueTask, report: TaskReport) -> tuple[list[float], list[float]]:
    """Return right labels and answers as numbers."""
    if not task.labels:
        return [right for right, _ in report.scores], [answer for _, answer in report.scores]
    number = {label: float(place) for place, label in enumerate(task.labels)}
    return [number[right] for right, _ in report.confusion], [number[answer] for _, answer in report.confusion]
