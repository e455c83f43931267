"""A sweep: trials that are proposed from those before them, and the trainings that they run.

A trial trains the encoder or a task up to its validation figure. In MLflow each has a run under that of the sweep. All
records go through an outbox of the sweep's own, so no trial waits for MLflow, and no other run is disturbed.

The winner gets a figure on test data, which no trial has used.
"""

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import numpy as np

from clozeline.cluster.ledger import open_workers
from clozeline.encoder.own import sources_of_family
from clozeline.lab.contest import PairedTest, keep
from clozeline.lab.experiment import ENCODER, Corpus, Experiment, code_of_stage, environment_of, training_of
from clozeline.lab.plan import SweepPlan, Value, value_in, with_values
from clozeline.lab.trials import TrialRecord, Trials
from clozeline.params.editing import Config
from clozeline.records import clean_text
from clozeline.records.finetune.task_metrics import TaskMetrics
from clozeline.records.record import MetricFile, Record
from clozeline.stages.calling.api import Run, call, written
from clozeline.system import errors, files
from clozeline.system.errors import TrainingError
from clozeline.system.files import remove_folder
from clozeline.system.workers import Workers
from clozeline.system.workspace import Workspace, run_lock, tracking_uri
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.selection import at_commit, hub_commit
from clozeline.tasks.task import TaskInputs
from clozeline.tasks.training import best_of, files_of, prepare_training, use_threads
from clozeline.tracking import delivery, runs
from clozeline.tracking.outbox import OUTBOX, RUN, Outbox, Status, TrackedRun, now_ms
from clozeline.training import curves, state

_LOG = logging.getLogger(__name__)
# Called with the step and the figure of each validation pass; what it raises ends the training.
OnValidation = Callable[[int, float], None]
_STATUS: Mapping[str, Status] = {"finished": "FINISHED", "pruned": "KILLED", "failed": "FAILED"}
_MOST_TEXTS = 2000
_FILE = "outcome.json"


class _Telling(state.Callback):
    def __init__(self, on_validation: OnValidation, figure: str) -> None:
        self._on_validation = on_validation
        self._figure = figure

    def on_validation(self, validation: curves.ValidationPass) -> None:
        self._on_validation(validation.step, getattr(validation, self._figure))


@dataclass(frozen=True)
class EncoderTraining:
    """Pre-training; the metric is one of the validation text."""

    experiment: Experiment
    metric: str

    @property
    def folder(self) -> Path:
        return self.experiment.folder

    def run(self, on_validation: OnValidation) -> float:
        """Train, from where an earlier call was killed, and return the metric. No test data are used."""
        telling = _Telling(on_validation, "accuracy" if self.metric == "best_validation_accuracy" else "loss")
        result = self.experiment.run([telling], keeps_weights=True)
        if self.metric == "nats_per_byte":
            return result.nats_per_byte
        figures = dict(MetricFile.read(self.folder / "metrics" / "pretrain.json"))
        return float(figures.get(self.metric, math.nan))

    def forget(self) -> None:
        """Remove weights and checkpoints; the figures stay."""
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
        facts = {"task": section.model_dump(), "seed": params.seed, **environment_of(corpus)}
        own = config.copy()
        own["finetune"] = {task: dict(own["finetune"][task])}
        own["export"]["models"] = {}
        code = [*code_of_stage("finetune"), *sources_of_family(params.pretrain.model.family)]
        folder = kept / files.fingerprint(facts, [*files_of(data), *code])
        return cls(folder, own, task, corpus, data)

    def run(self, on_validation: OnValidation) -> float:
        """Fine-tune up to the validation score, as `EncoderTraining` trains up to its metric."""
        file = self.folder / "score.json"
        with run_lock(self.folder / "lock", wait_seconds=math.inf):
            if file.is_file():
                return _Score.read(file).validation_score
            params, corpus = self.config.checked, self.corpus
            section, family = params.finetune[self.task], params.pretrain.model.family
            use_threads(section.num_threads)
            fixed, text = at_commit(section, hub_commit(section)), corpus.clean / "train.parquet"
            inputs = TaskInputs(fixed, params.seed, corpus.folder / ENCODER, self.data, text, family)
            training = prepare_training(KINDS[section.kind].prepare(inputs), inputs, self.folder / "work")
            trained = training.chosen().run(state.Callback(), lambda it: on_validation(it.step, it.validation_score))
            score = _Score(validation_score=best_of(trained.validations).validation_score)
            score.write(file)
            training.forget()
            return score.validation_score

    def forget(self) -> None:
        """Remove checkpoints; the score stays."""
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


Training = EncoderTraining | TaskTraining
# Opens the record of a trial elsewhere, as in MLflow; called with its end.
Logged = Callable[[TrialRecord], AbstractContextManager[Callable[[TrialRecord], None]]]


class PrunedError(Exception):
    """The trial is not worth finishing."""


@dataclass(frozen=True)
class Sweep:
    """What is tried, on what, and where it is kept."""

    plan: SweepPlan
    config: Config  # params of the project
    corpus: Corpus
    kept: Path  # folder of all experiments

    @cached_property
    def folder(self) -> Path:
        """Folder of this sweep, named by its space, the params, the text and the code."""
        params = self.config.checked
        task = None if self.plan.task is None else params.finetune[self.plan.task].model_dump()
        facts = {
            "plan": self.plan.model_dump(exclude={"trials"}),  # more trials add to those that there are
            "params": task or training_of(params),
            "evaluate": params.evaluate.model_dump(),
            "seed": params.seed,
            "corpus": self.corpus.digest,
        }
        code = [*code_of_stage(self.plan.stage), *sources_of_family(params.pretrain.model.family)]
        return self.kept / f"sweep-{files.fingerprint(facts, code)}"

    @property
    def outbox(self) -> Outbox:
        """Records for MLflow of this sweep alone."""
        return Outbox(self.folder / "outbox")

    @cached_property
    def trials(self) -> Trials:
        return Trials(self.folder, self.plan)

    def training(self, values: Mapping[str, Value]) -> Training:
        """Return the training with these values.

        Raises:
            ParamsError: the values contradict each other.
        """
        config = with_values(self.config, values)
        if self.plan.task is not None:
            return TaskTraining.of(config, self.plan.task, self.corpus, self.kept)
        experiment = Experiment.of(config, config.checked.seed, self.corpus, self.kept)
        return EncoderTraining(experiment, self.plan.metric)

    @property
    def first(self) -> Mapping[str, Value]:
        """Values of the first trial: params.yaml as it is."""
        params = self.config.checked
        return {key: value_in(params, key) for key in self.plan.space}

    def best_of(self, trials: Sequence[TrialRecord]) -> TrialRecord | None:
        """Return the finished trial with the best figure, the earliest of equal ones; None: none has finished."""
        sign = 1 if self.plan.direction == "minimize" else -1
        finished = [one for one in trials if one.value is not None]
        return min(finished, key=lambda one: (sign * (one.value or 0.0), one.number), default=None)


def run_trials(sweep: Sweep, logged: Logged, *, joins: bool = False) -> None:
    """Run trials, each here or on a node of a cluster, until there are as many as the plan asks for.

    Several processes may do so at once. One that `joins` others does not wait for trials whose process may have died.

    Raises:
        ClozelineError: a training failed for a reason that the values of the trial do not explain.
    """
    with open_workers(sweep.kept, 1, trains=True) as workers:

        def run(trial: TrialRecord) -> TrialRecord:
            with logged(trial) as end:
                ended = _ended(sweep, trial, workers)
                end(ended)
            return ended

        if not joins:
            sweep.trials.settle()
        while (ended := sweep.trials.run_next(sweep.first, run)) is not None:
            trials = sweep.trials.read()
            best = sweep.best_of(trials)
            _tell(sweep, ended, best)
            kept = {one.experiment for one in trials if one.number == 0 or one == best or one.state == "running"}
            for trial in trials:
                if trial.state == "finished" and trial.experiment not in kept:
                    sweep.training(trial.values).forget()  # neither the first nor the best


@dataclass(frozen=True)
class _Item:
    """A trial for the process that trains it."""

    sweep: Sweep
    trial: TrialRecord
    training: Training
    curves_to: Mapping[str, str]  # environment by which the training's curves go to the run of the trial

    @property
    def name(self) -> str:
        return f"trial {self.trial.number + 1}"


def _ended(sweep: Sweep, trial: TrialRecord, workers: Workers) -> TrialRecord:
    try:
        training = sweep.training(trial.values)  # here: its folder is named by the cores of this machine
        trial = replace(trial, experiment=training.folder.name)
        sweep.trials.begin(trial)
        curves_to = {name: os.environ[name] for name in (OUTBOX, RUN) if name in os.environ}
        (ended,) = workers.map(_trained, [_Item(sweep, trial, training, curves_to)])
        return ended
    except (errors.ParamsError, errors.TrainingError, errors.DataError) as error:  # these values do not work together
        if trial.number == 0:
            raise
        return replace(trial, state="failed", reason=error.cause)


def _trained(item: _Item) -> TrialRecord:
    sweep, trial = item.sweep, item.trial

    def on_validation(step: int, figure: float) -> None:
        is_hopeless = sweep.trials.report(trial, step, figure)
        if is_hopeless and trial.number:  # the first trial is what the others are compared with
            raise PrunedError

    os.environ.update(item.curves_to)
    try:
        value = item.training.run(on_validation)
    except PrunedError:
        item.training.forget()
        return replace(trial, state="pruned")
    if not math.isfinite(value):
        return replace(trial, state="failed", reason=f"{sweep.plan.metric} is {value}")
    return replace(trial, state="finished", value=value)


def _tell(sweep: Sweep, trial: TrialRecord, best: TrialRecord | None) -> None:
    figure = trial.state if trial.value is None else f"{sweep.plan.metric} {trial.value:.4f}"
    values = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in trial.values.items()}
    told = ", ".join(f"{key}={value}" for key, value in values.items())
    _LOG.info(
        "trial %d of %d: %s (%s)%s%s",
        *(trial.number + 1, sweep.plan.trials, figure, told),
        f": {trial.reason}" if trial.reason else "",
        "" if best is None or best.value is None else f"; best {best.value:.4f} of trial {best.number + 1}",
    )


@dataclass(frozen=True)
class TrialLog:
    """Opens and closes the run of each trial."""

    sweep: Sweep
    parent: str  # name of the sweep's run within its outbox

    @contextmanager
    def __call__(self, trial: TrialRecord) -> Iterator[Callable[[TrialRecord], None]]:
        """Open the run of a trial; the curves of its training go there too. An unfinished one is continued."""
        run, workspace, outbox = f"{self.parent}-{trial.number}", self.sweep.folder.name, self.sweep.outbox
        record = TrackedRun(
            name=f"trial {trial.number + 1}",
            tags={delivery.WORKSPACE: workspace},
            started_ms=now_ms(),
            parent=self.parent,
            fingerprint=f"{workspace}-{trial.number}",
            params={key: str(value) for key, value in trial.values.items()},
        )
        outbox.open(run, record)

        def end(ended: TrialRecord) -> None:
            figures = {} if ended.value is None else {self.sweep.plan.metric: ended.value}
            tags = {"trial.state": ended.state, "trial.experiment": ended.experiment, "error": ended.reason}
            told = {key: value for key, value in tags.items() if value}
            outbox.end(run, _STATUS[ended.state], tags=told, figures=figures)

        before = {name: os.environ[name] for name in (OUTBOX, RUN) if name in os.environ}
        os.environ.update({OUTBOX: str(outbox.folder.resolve()), RUN: run})
        try:
            yield end
        finally:
            for name in (OUTBOX, RUN):
                del os.environ[name]
            os.environ.update(before)


@contextmanager
def tracked(sweep: Sweep, workspace: Workspace, files: Sequence[Path]) -> Iterator[TrialLog]:
    """Open the run of the sweep in MLflow; it ends with these files, or as killed, however the block ends."""
    name, tags = f"sweep of {sweep.plan.task or sweep.plan.stage}", {delivery.WORKSPACE: sweep.folder.name}
    run = runs.FlowRun(sweep.outbox.folder, tracking_uri(workspace), name, tags)
    try:
        yield TrialLog(sweep, run.run)
    except BaseException:
        run.end("KILLED", tags={}, metrics={}, files=[])
        raise
    run.end("FINISHED", tags={}, metrics={}, files=files)


class FinalFigure(Record):
    """Figure of the winner on test data."""

    figure: str
    data: str
    value: float
    other: str  # what the figure is compared with: params.yaml as it is, or the baseline of the task
    other_value: float
    low: float
    high: float  # `low` and `high` are the ends of a 95 % interval: of the difference from `other`, or of `value`
    p_value: float | None = None  # of the difference; None: not tested


class Outcome(Record):
    """End of a sweep."""

    winner: int
    tested: FinalFigure | None  # None: params.yaml as it is won, or there are no test data
    num_uses: int  # how often this sweep has used the test data: once for each winner, as more trials may find another


def outcome_of(sweep: Sweep) -> tuple[TrialRecord, Outcome]:
    """Return the winner, and its figure on test data; measured only once.

    Raises:
        TrainingError: no trial has finished.
    """
    trials = sweep.trials.read()
    winner = sweep.best_of(trials)
    if winner is None:
        raise TrainingError(
            f"no trial of the sweep has a figure: {'; '.join(trial.reason or trial.state for trial in trials[:5])}",
            do="narrow the ranges in the sweep file, lower learning rates first, and call it again",
        )
    file = sweep.folder / _FILE
    known = Outcome.read(file) if file.is_file() else None
    if known is not None and known.winner == winner.number:
        return winner, known
    tested = _tested(sweep, winner, trials[0]) if winner.number else None
    uses = (known.num_uses if known else 0) + (tested is not None)
    outcome = Outcome(winner=winner.number, tested=tested, num_uses=uses)
    outcome.write(file)
    return winner, outcome


def _tested(sweep: Sweep, winner: TrialRecord, base: TrialRecord) -> FinalFigure | None:
    ours, theirs = (sweep.training(trial.values) for trial in (winner, base))
    if isinstance(ours, TaskTraining):
        top = ours.tested().headline
        return FinalFigure(
            figure=top.metric,
            data=f"test part of {ours.task}",
            value=top.value,
            other=top.baseline,
            other_value=top.baseline_value,
            low=top.low,
            high=top.high,
        )
    assert isinstance(ours, EncoderTraining)
    assert isinstance(theirs, EncoderTraining)
    return _on_holdout(sweep, ours, theirs)


def _on_holdout(sweep: Sweep, ours: EncoderTraining, theirs: EncoderTraining) -> FinalFigure | None:
    holdout = sweep.corpus.clean / "holdout.parquet"
    if not clean_text.num_rows(holdout, clean_text.TEXT):
        return None
    with TemporaryDirectory(prefix="clozeline-") as folder:
        some = Path(folder) / "texts.parquet"
        num_texts = keep(islice(chain.from_iterable(clean_text.texts_of(holdout)), _MOST_TEXTS), some)
        ours.experiment.run(keeps_weights=True)  # trains again if an ablation has removed the weights
        theirs.experiment.run(keeps_weights=True)
        first, second = ours.experiment.predicted(some), theirs.experiment.predicted(some)
    bytes_D = first.text_bytes_D.astype(np.float64)
    params = sweep.config.checked
    sampling = {"seed": params.seed, "num_samples": params.evaluate.num_bootstrap_samples}
    test = PairedTest.of(first.nats_D, second.nats_D, bytes_D, **sampling)
    value, other = (float(one.nats_D.sum() / bytes_D.sum()) for one in (first, second))
    return FinalFigure(
        figure="nats_per_byte",
        data=f"{num_texts:,} holdout texts",
        value=value,
        other="params.yaml",
        other_value=other,
        low=test.low,
        high=test.high,
        p_value=test.p_value,
    )
