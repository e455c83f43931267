"""A sweep: trials that are proposed from those before them, the winner, and its one look at test data.

Trials are kept in Optuna's storage, which several processes share; this is the one file that uses Optuna. A trial runs
while its process gives signs of life. One whose process died is repeated with its values and its figures so far, so
that its training continues from the last checkpoint. Each trial is proposed by a sampler with a seed of its own, from
the trials before it alone: a sweep proposes the same whether it was killed or not.

A trial trains the encoder or a task up to its validation figure. In MLflow each has a run under that of the sweep. All
records go through an outbox of the sweep's own, so no trial waits for MLflow, and no other run is disturbed.
"""

import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal, Protocol, Self

import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState, create_trial

from clozeline.cluster.ledger import open_workers
from clozeline.encoder.own import sources_of_family
from clozeline.lab.experiment import Corpus, Experiment, code_of_stage, training_of
from clozeline.lab.plan import Dimension, NumberRange, SweepPlan, Value, value_in, with_values
from clozeline.params.editing import Config
from clozeline.records.finetune.task_metrics import TaskMetrics
from clozeline.records.record import MetricFile, Record
from clozeline.stages.calling.api import Run, call, written
from clozeline.system.content import fingerprint
from clozeline.system.errors import ArtifactError, DataError, ParamsError, TrainingError
from clozeline.system.files import alone, remove_folder, replacing_file
from clozeline.system.workers import Workers
from clozeline.system.workspace import run_lock
from clozeline.tasks.files import at_commit, hub_commit
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.task import TaskInputs
from clozeline.tasks.training import best_of, files_of, prepare_training, use_threads
from clozeline.tracking.delivery import WORKSPACE
from clozeline.tracking.outbox import OUTBOX, RUN, Outbox, Status, TrackedRun, now_ms
from clozeline.training.curves import Look
from clozeline.training.state import Callback

_LOG = logging.getLogger(__name__)
State = Literal["running", "finished", "pruned", "failed"]
_FILE: Final = "trials.db"
_STUDY: Final = "sweep"
_HEARTBEAT_SECONDS: Final = 5
_GRACE_SECONDS: Final = 20
"""A trial without a heartbeat for so long has lost its process."""
_LOCKED_SECONDS: Final = 60
"""How long a process waits while another one writes into the storage."""
_NUMBER, _VALUES, _BEATS, _EXPERIMENT, _REASON = "number", "values", "beats", "experiment", "reason"
"""Attributes of a trial in the storage. `beats`: Optuna's number of the attempt that has had a heartbeat; without one,
Optuna does not see that its process died.
"""
_STATES: Final[Mapping[TrialState, State]] = {
    TrialState.WAITING: "running",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
_LEAST_FOR_IMPORTANCES: Final = 4
OnLook = Callable[[int, float], None]
"""Called with the step and the figure of each validation pass; what it raises ends the training."""
_FROM_LOOKS: Final = {"best_validation_accuracy": "accuracy"}
"""Metric → figure of a validation pass that a trial is stopped by; of others the loss."""
_LASTING: Final = ("trials",)
"""Keys of the plan that may change between calls: more trials add to those that there are."""
_STATUS: Final[Mapping[str, Status]] = {"finished": "FINISHED", "pruned": "KILLED", "failed": "FAILED"}


@dataclass(frozen=True)
class TrialRecord:
    """One trial: the values that it tries, and what came of them."""

    number: int
    values: Mapping[str, Value]
    state: State = "running"
    looks: Mapping[int, float] = field(default_factory=dict)
    """Step of a validation pass → figure."""
    value: float | None = None
    """The metric; None: not finished."""
    experiment: str = ""
    """Name of the folder with its training."""
    reason: str = ""
    """Why it failed."""
    attempt: int = field(default=0, compare=False)
    """Optuna's number of the trial: another one after its process died."""

    @property
    def figure(self) -> float | None:
        """The metric, if the trial has finished."""
        return self.value if self.state == "finished" else None


TrialsRun = Callable[[TrialRecord], TrialRecord]
"""Runs a trial to its end."""


@dataclass(frozen=True)
class Trials:
    """The trials of one sweep, in a folder."""

    folder: Path
    plan: SweepPlan

    @property
    def file(self) -> Path:
        """The storage, which optuna-dashboard opens as sqlite:///FILE."""
        return self.folder / _FILE

    def read(self) -> list[TrialRecord]:
        """Return the trials by number, each as its latest attempt has it."""
        return [_record(frozen) for frozen in self._latest()]

    def settle(self) -> None:
        """If trials run, wait until those whose process has died are known."""
        if self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            _LOG.info("waiting for %d s: does another process run a trial, or has it died?", _GRACE_SECONDS)
            time.sleep(_GRACE_SECONDS + 1)

    def run_next(self, first: Mapping[str, Value], run: TrialsRun) -> TrialRecord | None:
        """Run one trial: one that a dead process left, or the next. Return it; None: there is none left.

        Args:
            first: the values of trial 0; the others are proposed.
        """
        study = self._study
        attempt = -1
        with ExitStack() as claiming:
            claiming.enter_context(alone(self.folder / "lock"))
            if not self._is_one_waiting(first):
                return None

            def objective(trial: optuna.Trial) -> float:
                nonlocal attempt
                attempt = trial.number
                self._storage.record_heartbeat(self._id(attempt))
                trial.set_user_attr(_BEATS, attempt)
                claiming.close()
                return self._ran(trial, run)

            try:
                study.optimize(objective, n_trials=1)
            except (UpdateFinishedTrialError, ValueError):
                if attempt < 0 or self._at(attempt).attempt == attempt:
                    raise
                _LOG.warning("another process has taken up a trial, as this one stood still")
        return self._at(attempt)

    def begin(self, trial: TrialRecord) -> None:
        """Note the folder of the trial's training."""
        self._storage.set_trial_user_attr(self._id(trial.attempt), _EXPERIMENT, trial.experiment)

    def look(self, trial: TrialRecord, step: int, figure: float) -> bool:
        """Note the figure of a validation pass; return whether the trial's best one is worse than the median of the
        others at that step.
        """
        identity = self._id(trial.attempt)
        if step not in self._storage.get_trial(identity).intermediate_values:
            self._storage.set_trial_intermediate_value(identity, step, figure)
        return bool(self._study.pruner.prune(self._study, self._storage.get_trial(identity)))

    def importances(self) -> Mapping[str, float]:
        """Return the share of 1 that each key explains (PED-ANOVA, Watanabe et al. 2023); empty: too few trials."""
        study = self._copy((TrialState.COMPLETE,))
        if len(study.trials) < _LEAST_FOR_IMPORTANCES or len({trial.value for trial in study.trials}) < 2:
            return {}
        shares: dict[str, float] = optuna.importance.get_param_importances(study)
        return shares

    @cached_property
    def _storage(self) -> RDBStorage:
        if (self.folder / "trials").is_dir():
            raise ArtifactError(
                f"{self.folder} is a sweep of an earlier version, which kept each trial in a file",
                given=self.folder / "trials",
                expected=f"the storage {self.file}",
                do=f"`rm -r {self.folder}`, and call the sweep again: its finished trainings do not run again",
            )
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.folder.mkdir(parents=True, exist_ok=True)
        with alone(self.folder / "lock"):
            if not self.file.is_file():
                with replacing_file(self.file) as beside:
                    made = _opened(beside)
                    optuna.create_study(study_name=_STUDY, storage=made, direction=self.plan.direction)
                    made.engine.dispose()
        return _opened(self.file)

    @cached_property
    def _study(self) -> optuna.Study:
        pruner = MedianPruner() if self.plan.pruning else NopPruner()
        return optuna.load_study(study_name=_STUDY, storage=self._storage, pruner=pruner)

    def _id(self, attempt: int) -> int:
        study = self._storage.get_study_id_from_name(_STUDY)
        return int(self._storage.get_trial_id_from_study_id_trial_number(study, attempt))

    def _latest(self) -> list[FrozenTrial]:
        by_number = {frozen.user_attrs[_NUMBER]: frozen for frozen in self._study.get_trials(deepcopy=False)}
        return [by_number[number] for number in sorted(by_number)]

    def _at(self, attempt: int) -> TrialRecord:
        """Return the latest attempt of the same trial."""
        number: int = self._storage.get_trial(self._id(attempt)).user_attrs[_NUMBER]
        return self.read()[number]

    def _is_one_waiting(self, first: Mapping[str, Value]) -> bool:
        """Let a trial wait to be run, if there is one left; return whether there is. The caller holds the lock."""
        for frozen in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if frozen.user_attrs.get(_BEATS) != frozen.number:  # its process died while it held the lock
                self._study.tell(frozen.number, state=TrialState.FAIL)
        with _heartbeat_known():
            fail_stale_trials(self._study)
            latest = self._latest()
            for frozen in filter(_is_interrupted, latest):
                RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)(self._study, frozen)
        if self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            return True
        if len(latest) < self.plan.trials:
            self._study.add_trial(self._next(len(latest), first))
        return len(latest) < self.plan.trials

    def _next(self, number: int, first: Mapping[str, Value]) -> FrozenTrial:
        space = {key: _distribution(values) for key, values in self.plan.space.items()}
        values = first if number == 0 else self._proposed(number, space)
        told = {_NUMBER: number, _VALUES: dict(values)}
        try:
            return create_trial(state=TrialState.WAITING, params=dict(values), distributions=space, user_attrs=told)
        except ValueError:  # params.yaml has a value outside the space: nothing is proposed from it
            return create_trial(state=TrialState.WAITING, user_attrs=told)

    def _proposed(self, number: int, space: Mapping[str, BaseDistribution]) -> Mapping[str, Value]:
        """Return the values of trial `number`: tree-structured Parzen estimators (Bergstra et al. 2011)."""
        study = self._copy((TrialState.COMPLETE, TrialState.PRUNED), TPESampler(seed=_seed(self.plan, number)))
        asked = study.ask(dict(space)).params
        return {key: _readable(value, self.plan.space[key]) for key, value in asked.items()}

    def _copy(self, states: tuple[TrialState, ...], sampler: TPESampler | None = None) -> optuna.Study:
        """Return the trials whose values are inside the space, in the order of their numbers, as a study in memory."""
        copy = optuna.create_study(direction=self.plan.direction, sampler=sampler)
        copy.add_trials([frozen for frozen in self._latest() if frozen.state in states and frozen.params])
        return copy

    def _ran(self, trial: optuna.Trial, run: TrialsRun) -> float:
        try:
            ended = run(_record(self._storage.get_trial(self._id(trial.number))))
        except SystemExit:  # SIGTERM: the next call need not wait until the heartbeat is missed
            self._study.tell(trial, state=TrialState.FAIL)
            raise
        if ended.state == "pruned":
            raise optuna.TrialPruned
        if ended.reason:
            trial.set_user_attr(_REASON, ended.reason)
        return math.nan if ended.value is None else ended.value  # of NaN, Optuna says that the trial has failed


def _opened(file: Path) -> RDBStorage:
    with _heartbeat_known():
        return RDBStorage(
            f"sqlite:///{file}",
            engine_kwargs={"connect_args": {"timeout": _LOCKED_SECONDS}},
            heartbeat_interval=_HEARTBEAT_SECONDS,
            grace_period=_GRACE_SECONDS,
        )


@contextmanager
def _heartbeat_known() -> Iterator[None]:
    """Silence the warning that heartbeats, of 2021, are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


def _is_interrupted(frozen: FrozenTrial) -> bool:
    """Return whether the trial ended without an outcome: its process died or was stopped, or its training failed for a
    reason that its values do not explain.
    """
    return bool(frozen.state == TrialState.FAIL) and _REASON not in frozen.user_attrs


def _record(frozen: FrozenTrial) -> TrialRecord:
    told = frozen.user_attrs
    return TrialRecord(
        number=told[_NUMBER],
        values=told[_VALUES],
        state="running" if _is_interrupted(frozen) else _STATES[frozen.state],
        looks=dict(sorted(frozen.intermediate_values.items())),
        value=frozen.value if frozen.state == TrialState.COMPLETE else None,
        experiment=told.get(_EXPERIMENT, ""),
        reason=told.get(_REASON, ""),
        attempt=frozen.number,
    )


def _distribution(values: Dimension) -> BaseDistribution:
    if not isinstance(values, NumberRange):
        return CategoricalDistribution(values)
    if values.is_whole:
        step = 1 if values.step is None else int(values.step)
        return IntDistribution(int(values.low), int(values.high), log=values.log, step=step)
    return FloatDistribution(values.low, values.high, log=values.log, step=values.step)


def _readable(value: Value, tried: Dimension) -> Value:
    """Return a number of a range with three digits, as a person writes it; it stays in the range."""
    if not isinstance(value, float) or not isinstance(tried, NumberRange) or tried.step is not None:
        return value
    return min(max(float(f"{value:.3g}"), float(tried.low)), float(tried.high))


def _seed(plan: SweepPlan, number: int) -> int:
    return (plan.seed * 1_000_003 + number) % 2**32


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


Logged = Callable[[TrialRecord], AbstractContextManager[Callable[[TrialRecord], None]]]
"""Opens the record of a trial elsewhere, as in MLflow; called with its end."""


class PrunedError(Exception):
    """The trial is not worth finishing."""


@dataclass(frozen=True)
class Sweep:
    """What is tried, on what, and where it is kept."""

    plan: SweepPlan
    config: Config
    """Params of the project."""
    corpus: Corpus
    kept: Path
    """Folder of all experiments."""

    @cached_property
    def folder(self) -> Path:
        """Folder of this sweep, named by its space, the params, the text and the code."""
        params = self.config.checked
        task = None if self.plan.task is None else params.finetune[self.plan.task].model_dump()
        facts = {
            "plan": self.plan.model_dump(exclude={*_LASTING}),
            "params": task or training_of(params),
            "evaluate": params.evaluate.model_dump(),
            "seed": params.seed,
            "corpus": self.corpus.digest,
        }
        code = [*code_of_stage(self.plan.stage), *sources_of_family(params.pretrain.model.family)]
        return self.kept / f"sweep-{fingerprint(facts, code)}"

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
        finished = [one for one in trials if one.figure is not None]
        return min(finished, key=lambda one: (sign * (one.figure or 0.0), one.number), default=None)


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
            _tell(sweep, ended)
            _forget_beaten(sweep)


@dataclass(frozen=True)
class _Item:
    """A trial for the process that trains it."""

    sweep: Sweep
    trial: TrialRecord
    training: Training
    curves_to: Mapping[str, str]
    """Environment by which the training's curves go to the run of the trial."""

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
    except (ParamsError, TrainingError, DataError) as error:  # these values do not work together
        if trial.number == 0:
            raise
        return replace(trial, state="failed", reason=error.cause)


def _trained(item: _Item) -> TrialRecord:
    sweep, trial = item.sweep, item.trial

    def on_look(step: int, figure: float) -> None:
        is_hopeless = sweep.trials.look(trial, step, figure)
        if is_hopeless and trial.number:  # the first trial is what the others are compared with
            raise PrunedError

    os.environ.update(item.curves_to)
    try:
        value = item.training.run(on_look)
    except PrunedError:
        item.training.forget()
        return replace(trial, state="pruned")
    if not math.isfinite(value):
        return replace(trial, state="failed", reason=f"{sweep.plan.metric} is {value}")
    return replace(trial, state="finished", value=value)


def _tell(sweep: Sweep, trial: TrialRecord) -> None:
    trials = sweep.trials.read()
    best = sweep.best_of(trials)
    figure = trial.state if trial.value is None else f"{sweep.plan.metric} {trial.value:.4f}"
    told = ", ".join(f"{key}={_short(value)}" for key, value in trial.values.items())
    _LOG.info(
        "trial %d of %d: %s (%s)%s%s",
        *(trial.number + 1, sweep.plan.trials, figure, told),
        f": {trial.reason}" if trial.reason else "",
        "" if best is None or best.value is None else f"; best {best.value:.4f} of trial {best.number + 1}",
    )


def _short(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _forget_beaten(sweep: Sweep) -> None:
    """Remove the weights of finished trials that are neither the first nor the best."""
    trials = sweep.trials.read()
    best = sweep.best_of(trials)
    kept = {one.experiment for one in trials if one.number == 0 or one == best or one.state == "running"}
    for trial in trials:
        if trial.state == "finished" and trial.experiment not in kept:
            sweep.training(trial.values).forget()


@dataclass(frozen=True)
class TrialLog:
    """Opens and closes the run of each trial."""

    outbox: Outbox
    parent: str
    """Name of the sweep's run within the outbox."""
    workspace: str
    metric: str

    @contextmanager
    def __call__(self, trial: TrialRecord) -> Iterator[Callable[[TrialRecord], None]]:
        """Open the run of a trial; the curves of its training go there too. An unfinished one is continued."""
        run = f"{self.parent}-{trial.number}"
        record = TrackedRun(
            name=f"trial {trial.number + 1}",
            tags={WORKSPACE: self.workspace},
            started_ms=now_ms(),
            parent=self.parent,
            fingerprint=f"{self.workspace}-{trial.number}",
            params={key: str(value) for key, value in trial.values.items()},
        )
        self.outbox.open(run, record)
        with _in_environment({OUTBOX: str(self.outbox.folder.resolve()), RUN: run}):
            yield lambda ended: self._end(run, ended)

    def _end(self, run: str, trial: TrialRecord) -> None:
        figures = {} if trial.value is None else {self.metric: trial.value}
        tags = {"trial.state": trial.state, "trial.experiment": trial.experiment, "error": trial.reason}
        told = {key: value for key, value in tags.items() if value}
        self.outbox.end(run, _STATUS[trial.state], tags=told, figures=figures)


def outbox_in(folder: Path) -> Outbox:
    return Outbox(folder / "outbox")


@contextmanager
def _in_environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
