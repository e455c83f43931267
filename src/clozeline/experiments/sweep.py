"""A sweep: trials that are proposed from those before them, the winner, and its one look at test data."""

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from clozeline.api.config import Config
from clozeline.cluster.executors import open_workers
from clozeline.encoder.own_code import sources_of_family
from clozeline.errors import DataError, ParamsError, TrainingError
from clozeline.experiments.arms import training_of
from clozeline.experiments.code import code_of_stage
from clozeline.experiments.corpus import Corpus
from clozeline.experiments.experiment import Experiment
from clozeline.experiments.plan import SweepPlan, Value, value_in, with_values
from clozeline.experiments.trainings import EncoderTraining, TaskTraining, Training
from clozeline.experiments.trials import TrialRecord, Trials
from clozeline.machine.workers import Workers
from clozeline.storage.fingerprints import fingerprint
from clozeline.tracking.outbox import OUTBOX, RUN

_LOG = logging.getLogger(__name__)
_LASTING: Final = ("trials",)
"""Keys of the plan that may change between calls: more trials add to those that there are."""
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
