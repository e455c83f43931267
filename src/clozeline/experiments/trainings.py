"""The training of a trial, up to its validation figure: of the encoder, or of a task."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, Protocol, Self

import torch

from clozeline.api.config import Config
from clozeline.api.run import Run, call, written
from clozeline.artifacts.finetune.task_metrics import TaskMetrics
from clozeline.artifacts.record import MetricFile, Record
from clozeline.encoder.own_code import sources_of_family
from clozeline.experiments.code import code_of_stage
from clozeline.experiments.corpus import Corpus
from clozeline.experiments.experiment import Experiment
from clozeline.orchestration.run_lock import run_lock
from clozeline.storage.atomic import remove_folder, replacing_file
from clozeline.storage.fingerprints import fingerprint
from clozeline.tasks.best_look import best_of
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.sources import at_commit, hub_commit
from clozeline.tasks.task import TaskInputs
from clozeline.tasks.training import files_of, prepare_training, use_threads
from clozeline.training.callbacks import Callback
from clozeline.training.curves import Look

OnLook = Callable[[int, float], None]
"""Called with the step and the figure of each validation pass; what it raises ends the training."""
_FROM_LOOKS: Final = {"best_validation_accuracy": "accuracy"}
"""Metric → figure of a validation pass that a trial is stopped by; of others the loss."""


class Training(Protocol):
    """A training of a trial."""

    @property
    def folder(self) -> Path: ...

    def run(self, on_look: OnLook) -> float:
        """Train, from where an earlier call was killed, and return the metric. No test data are used."""

    def forget(self) -> None:
        """Remove weights and checkpoints; the figures stay."""


class _Telling(Callback):
    def __init__(self, on_look: OnLook, figure: str) -> None:
        self._on_look = on_look
        self._figure = figure

    def on_look(self, look: Look) -> None:
        self._on_look(look.step, getattr(look, self._figure))


@dataclass(frozen=True)
class EncoderTraining:
    """Pre-training; the metric is one of the validation text."""

    experiment: Experiment
    metric: str

    @property
    def folder(self) -> Path:
        return self.experiment.folder

    def run(self, on_look: OnLook) -> float:
        telling = _Telling(on_look, _FROM_LOOKS.get(self.metric, "loss"))
        result = self.experiment.run([telling], keeps_weights=True)
        if self.metric == "nats_per_byte":
            return result.nats_per_byte
        figures = dict(MetricFile.read(self.folder / "metrics" / "pretrain.json"))
        return float(figures.get(self.metric, math.nan))

    def forget(self) -> None:
        remove_folder(self.experiment.model)
        remove_folder(self.folder / "work")


class _Score(Record):
    validation_score: float


@dataclass(frozen=True)
class TaskTraining:
    """Fine-tuning of one task; the metric is its validation score."""

    folder: Path
    config: Config
    task: str
    corpus: Corpus
    data: Path

    @classmethod
    def of(cls, config: Config, task: str, corpus: Corpus, kept: Path) -> Self:
        """Return the training of `task` in a folder of `kept` that is named by everything that decides its result."""
        params = config.checked
        section = params.finetune[task]
        data = corpus.holding(Path(section.data))
        facts = {
            "task": section.model_dump(),
            "seed": params.seed,
            "corpus": corpus.digest,
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        }
        own = config.copy()
        own["finetune"] = {task: dict(own["finetune"][task])}
        own["export"]["models"] = {}
        code = [*code_of_stage("finetune"), *sources_of_family(params.pretrain.model.family)]
        folder = kept / fingerprint(facts, [*files_of(data), *code])
        return cls(folder, own, task, corpus, data)

    def run(self, on_look: OnLook) -> float:
        with run_lock(self.folder / "lock", wait_seconds=math.inf):
            return self._run(on_look)

    def _run(self, on_look: OnLook) -> float:
        file = self.folder / "score.json"
        if file.is_file():
            return _Score.model_validate_json(file.read_bytes()).validation_score
        params = self.config.checked
        section = params.finetune[self.task]
        use_threads(section.num_threads)
        assert self.corpus.encoder is not None
        inputs = TaskInputs(
            at_commit(section, hub_commit(section)),
            params.seed,
            self.corpus.encoder,
            self.data,
            self.corpus.clean / "train.parquet",
            params.pretrain.model.family,
        )
        work = self.folder / "work"
        training = prepare_training(KINDS[section.kind].prepare(inputs), inputs, work)
        trained = training.chosen().run(Callback(), lambda look: on_look(look.step, look.validation_score))
        score = _Score(validation_score=best_of(trained.looks).validation_score)
        with replacing_file(file) as beside:
            beside.write_text(score.model_dump_json() + "\n", encoding="utf-8")
        training.forget()
        return score.validation_score

    def forget(self) -> None:
        remove_folder(self.folder / "work")

    def tested(self) -> TaskMetrics:
        """Run the whole stage, which uses the test part, and return its figures."""
        run = Run(self.folder)
        metrics = self.folder / "metrics" / "finetune" / f"{self.task}.json"
        if not metrics.is_file():
            self.corpus.laid_into(self.folder)
            written(run, self.config)
            call("finetune", run, {"key": self.task, "item.data": str(self.data)})
        return TaskMetrics.read(metrics)
