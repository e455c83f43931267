"""The trials of a sweep in Optuna's storage, which several processes share; this is the one file that uses Optuna.

A trial runs while its process gives signs of life. One whose process died is repeated with its values and its figures
so far, so that its training continues from the last checkpoint. Each trial is proposed by a sampler with a seed of its
own, from the trials before it alone: a sweep proposes the same whether it was killed or not.
"""

import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState, create_trial

from clozeline.lab.plan import Dimension, NumberRange, SweepPlan, Value
from clozeline.system.files import alone, replacing_file

_LOG = logging.getLogger(__name__)
State = Literal["running", "finished", "pruned", "failed"]
_FILE = "trials.db"
_STUDY = "sweep"
_HEARTBEAT_SECONDS = 5
# A trial without a heartbeat for so long has lost its process.
_GRACE_SECONDS = 20
# How long a process waits while another one writes into the storage.
_LOCKED_SECONDS = 60
# Attributes of a trial in the storage. `beats`: Optuna's number of the attempt that has had a heartbeat; without one,
# Optuna does not see that its process died.
_NUMBER, _VALUES, _BEATS, _EXPERIMENT, _REASON = "number", "values", "beats", "experiment", "reason"
_STATES: Mapping[TrialState, State] = {
    TrialState.WAITING: "running",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
_LEAST_FOR_IMPORTANCES = 4


@dataclass(frozen=True)
class TrialRecord:
    """One trial: the values that it tries, and what came of them."""

    number: int
    values: Mapping[str, Value]
    state: State = "running"
    validations: Mapping[int, float] = field(default_factory=dict)  # step of a validation pass → figure
    value: float | None = None  # the metric; None: not finished
    experiment: str = ""  # name of the folder with its training
    reason: str = ""  # why it failed
    attempt: int = field(default=0, compare=False)  # Optuna's number of the trial: another one after its process died


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

    def run_next(self, first: Mapping[str, Value], run: Callable[[TrialRecord], TrialRecord]) -> TrialRecord | None:
        """Run one trial: one that a dead process left, or the next. Return it; None: there is none left.

        Args:
            first: the values of trial 0; the others are proposed.
            run: runs a trial to its end.
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

    def report(self, trial: TrialRecord, step: int, figure: float) -> bool:
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
        warnings.simplefilter("ignore", ExperimentalWarning)  # heartbeats, of 2021, count as experimental
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
        sampler = TPESampler(seed=(self.plan.seed * 1_000_003 + number) % 2**32)
        study = self._copy((TrialState.COMPLETE, TrialState.PRUNED), sampler)
        asked = study.ask(dict(space)).params
        return {key: _readable(value, self.plan.space[key]) for key, value in asked.items()}

    def _copy(self, states: tuple[TrialState, ...], sampler: TPESampler | None = None) -> optuna.Study:
        """Return the trials whose values are inside the space, in the order of their numbers, as a study in memory."""
        copy = optuna.create_study(direction=self.plan.direction, sampler=sampler)
        copy.add_trials([frozen for frozen in self._latest() if frozen.state in states and frozen.params])
        return copy

    def _ran(self, trial: optuna.Trial, run: Callable[[TrialRecord], TrialRecord]) -> float:
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
    return RDBStorage(
        f"sqlite:///{file}",
        engine_kwargs={"connect_args": {"timeout": _LOCKED_SECONDS}},
        heartbeat_interval=_HEARTBEAT_SECONDS,
        grace_period=_GRACE_SECONDS,
    )


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
        validations=dict(sorted(frozen.intermediate_values.items())),
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
