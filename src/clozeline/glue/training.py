"""Fine-tuning for one task from one seed, as stage `finetune` trains; a finished one is kept and not done again."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from clozeline.artifacts.preprocess.clean_text import SCHEMA
from clozeline.encoder.own_code import sources_of_family
from clozeline.errors import ArtifactError
from clozeline.glue.figures import Trained
from clozeline.glue.files import DEV, TRAIN, part_of_texts
from clozeline.glue.tasks import GlueTask
from clozeline.params import FinetuneParams
from clozeline.params.recipes import laid_over
from clozeline.stages.finetune import watched
from clozeline.storage.fingerprints import code_of, fingerprint
from clozeline.tasks.published import folder_of
from clozeline.tasks.seeds import train_each
from clozeline.tasks.task import TaskInputs, TaskReport
from clozeline.tasks.training import CODE, files_of, use_threads

_LOG = logging.getLogger(__name__)
_NO_TEXT = "no-text.parquet"


@dataclass(frozen=True)
class GlueRun:
    """What a run of GLUE is asked to do."""

    data: Path
    model: str
    tasks: Sequence[GlueTask]
    is_each_needed: bool
    """Whether each of `tasks` has to be in `data`; otherwise those that are there."""
    num_seeds: int
    limit: int | None
    """Largest number of rows of each part that are used; None: all."""
    knobs: Mapping[str, Any]
    """Values for the sections of the tasks, as under `finetune` in params.yaml."""
    work: Path
    """Folder of the converted data, checkpoints and results."""

    @cached_property
    def encoder(self) -> Path:
        """Folder of the model.

        Raises:
            ArtifactError: there is no such encoder.
        """
        folder = folder_of(self.model, None, "the model of --model")
        if not (folder / "config.json").is_file():
            raise ArtifactError(
                f"{folder} holds no model",
                given=f"no {folder / 'config.json'}",
                expected="the encoder of a project, or the folder or hub name of a published one",
                do="run `clozeline run` first, or name a model with --model",
            )
        return folder

    def data_of(self, task: GlueTask) -> Path:
        """Return the folder of a task's converted data."""
        return self.work / "data" / task.name


def section_of(task: GlueTask, preset: Mapping[str, Any], data: Path, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's section of params.yaml: its preset, read from the converted files, under the user's knobs."""
    splits = {"train": f"{TRAIN}.jsonl", "validation": None, "test": f"{DEV}.jsonl"}
    local = {"data": str(data), "hub": None, "splits": splits, "num_seeds": 1, "num_examples": 0}
    return laid_over({**preset, **local}, knobs)


def trained(task: GlueTask, params: FinetuneParams, seed: int, run: GlueRun, family: str) -> Trained:
    """Return the answers of the model trained from this seed; those of an earlier call if nothing changed since.

    `family`: `pretrain.model.family` of the project, which opens your own encoder.

    Raises:
        ArtifactError, DataError, ParamsError, TrainingError: as in `train_each`.
    """
    data = run.data_of(task)
    facts = {"params": params.model_dump(), "seed": seed}
    code = [*code_of(CODE), *sources_of_family(family)]
    key = fingerprint(facts, [*files_of(data), *files_of(run.encoder), *code])
    kept = run.work / "results" / f"{task.name}-{seed}-{key}.json"
    if kept.is_file():
        _LOG.info("%s, seed %d: finished before, read from %s", task.title, seed, kept)
        return Trained.read(kept)
    nothing = run.work / _NO_TEXT
    if not nothing.is_file():
        pq.write_table(SCHEMA.empty_table(), nothing)
    use_threads(params.num_threads)
    started = time.monotonic()
    inputs = TaskInputs(params, seed, run.encoder, data, nothing, family)
    work = run.work / "training" / f"{task.name}-{seed}"
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
