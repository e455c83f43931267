"""Claim: a sweep prunes, survives values that do not work, picks by validation, and tests the winner alone, once.
One that cannot work is refused before anything runs, with the place in its file; on a cluster, a sweep and an ablation
find the same, and a killed sweep repeats no finished trial.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from clozeline.lab import sweep as sweep_module
from clozeline.lab.experiment import Corpus
from clozeline.lab.plan import NumberRange, SweepPlan, diff_of, read_plan, value_in, with_values
from clozeline.lab.sweep import EncoderTraining, FinalFigure, Sweep, TrialLog, outcome_of, run_trials
from clozeline.lab.trials import TrialRecord, Trials
from clozeline.params.editing import Config
from clozeline.system.errors import ParamsError, TrainingError
from clozeline.tracking.delivery import WORKSPACE
from clozeline.tracking.outbox import OUTBOX, TrackedRun
from clozeline.tracking.run_logger import run_logger
from tests.make.stores import delivered, runs_of

KEY = "pretrain.masking.mask_rate"
# Mask rates in the order of the trials; the first is that of params.yaml.
RATES = (0.3, 0.4, 0.9, 0.2, 0.5)


@dataclass
class Made:
    """Training whose metric is the distance of the mask rate from 0.45; at 0.9 it fails."""

    folder: Path
    rate: float
    forgotten: list[float]

    def run(self, on_validation: Callable[[int, float], None]) -> float:
        if self.rate == 0.9:
            raise TrainingError("the loss is not finite", given="nan", expected="a number", do="lower the rate")
        for step in (10, 20):
            on_validation(step, abs(self.rate - 0.45))
        return abs(self.rate - 0.45)

    def forget(self) -> None:
        self.forgotten.append(self.rate)


@dataclass(frozen=True)
class MadeSweep(Sweep):
    forgotten: list[float] = field(default_factory=list)

    def training(self, values: object) -> Made:  # type: ignore[override]  # the same interface
        rate = values[KEY]  # type: ignore[index]
        return Made(self.kept / f"{rate}", rate, self.forgotten)

    def changed(self, **changes: object) -> "MadeSweep":
        return replace(self, plan=self.plan.model_copy(update=changes))


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeSweep:
    """Proposals from a list in the place of Optuna's; a trial is hopeless if it is worse than every other."""
    noted = Trials.report

    def report(trials: Trials, trial: TrialRecord, step: int, figure: float) -> bool:
        noted(trials, trial, step, figure)
        return trials.plan.pruning and all(figure > one.value for one in trials.read() if one.value is not None)

    monkeypatch.setattr(Trials, "_proposed", lambda trials, number, space: {KEY: RATES[number]})
    monkeypatch.setattr(Trials, "report", report)
    plan = {"metric": "nats_per_byte", "trials": 5, "space": {KEY: {"low": 0.1, "high": 0.95}}}
    return MadeSweep(SweepPlan.model_validate(plan), Config(), Corpus(tmp_path, "a hash"), tmp_path / "kept")


@contextmanager
def unlogged(trial: TrialRecord) -> Iterator[Callable[[TrialRecord], None]]:
    yield lambda ended: None


def winner_of(sweep: Sweep) -> int | None:
    best = sweep.best_of(sweep.trials.read())
    return best and best.number


def test_trials_end_finished_pruned_or_failed_and_only_weights_of_the_first_and_the_best_stay(sweep: MadeSweep) -> None:
    run_trials(sweep.changed(trials=2), unlogged)
    run_trials(sweep, unlogged)
    trials = sweep.trials.read()
    assert [trial.state for trial in trials] == ["finished", "finished", "failed", "pruned", "finished"]
    assert "not finite (nan)" in trials[2].reason
    assert trials[3].validations == pytest.approx({10: 0.25})
    assert trials[3].value is None
    assert winner_of(sweep) == 1, "the earliest of equal ones"
    assert set(sweep.forgotten) == {0.2, 0.5}
    whole = sweep.changed(pruning=False)
    assert whole.folder != sweep.folder
    run_trials(whole, unlogged)
    assert [trial.state for trial in whole.trials.read()].count("finished") == 4


def test_a_figure_that_is_not_finite_is_a_failure_and_the_sweep_goes_on(sweep: MadeSweep, monkeypatch) -> None:
    """A figure of 0 counts; without any figure the sweep ends."""
    figures = dict(zip(RATES, (math.nan, math.inf, 0.5, 0.0, 0.2), strict=True))
    monkeypatch.setattr(Made, "run", lambda made, on_validation: figures[made.rate])
    begun = sweep.changed(trials=2)
    run_trials(begun, unlogged)
    with pytest.raises(TrainingError, match="no trial of the sweep has a figure"):
        outcome_of(begun)
    run_trials(sweep, unlogged)
    trials = sweep.trials.read()
    assert (trials[0].state, trials[0].value, trials[0].reason) == ("failed", None, "nats_per_byte is nan")
    assert [trial.state for trial in trials[1:]] == ["failed", "finished", "finished", "finished"]
    assert winner_of(sweep) == RATES.index(0.2)


def test_test_data_are_used_once_for_each_winner_other_than_the_params_as_they_are(sweep, monkeypatch) -> None:
    used: list[int] = []

    def tested(sweep: Sweep, best: TrialRecord, base: TrialRecord) -> FinalFigure:
        used.append(best.number)
        return FinalFigure(figure="f", data="d", value=1, other="params.yaml", other_value=2, low=-2, high=-1)

    monkeypatch.setattr(sweep_module, "_tested", tested)
    first = sweep.changed(trials=1)
    run_trials(first, unlogged)
    _, outcome = outcome_of(first)
    assert (outcome.winner, outcome.tested, outcome.num_uses, used) == (0, None, 0, [])
    run_trials(sweep, unlogged)
    assert outcome_of(sweep) == outcome_of(sweep)
    _, outcome = outcome_of(sweep)
    assert (outcome.winner, outcome.num_uses, used) == (1, 1, [1])


def test_the_winners_change_is_a_diff_of_params_yaml(tmp_path: Path) -> None:
    text = "pretrain:\n  masking: {unit: word, mask_rate: 0.2}  # words\n  steps: 9"
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    head, *changed = diff_of(tmp_path, {KEY: 0.4, "pretrain.steps": 9}).splitlines()
    assert (head, changed[0]) == ("--- a/params.yaml", "+++ b/params.yaml")
    removed, added = [line for line in changed[2:] if line[0] in "+-"]
    assert removed.startswith("-")
    assert "mask_rate: 0.4" in added
    assert diff_of(tmp_path, {KEY: 0.2}) == ""


def test_the_winner_is_compared_with_the_params_on_text_that_no_trial_saw(
    config: Config, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {"metric": "best_validation_accuracy", "trials": 1, "space": {"pretrain.steps": [10, 40]}, "pruning": False}
    config["pretrain"]["validation"]["every_steps"] = 20
    sweep = Sweep(SweepPlan.model_validate(plan), config, corpus, tmp_path / "kept")
    run_trials(sweep, unlogged)
    (base,) = sweep.trials.read()
    assert list(base.validations) == [20, 40]
    assert base.value == max(base.validations.values())
    monkeypatch.setattr(Trials, "_proposed", lambda trials, number, space: {"pretrain.steps": 80})
    more = replace(sweep.trials, plan=sweep.plan.model_copy(update={"trials": 2}))
    assert more.run_next({}, lambda trial: replace(trial, state="finished", value=0.9)) is not None
    tested = outcome_of(sweep)[1].tested
    assert tested is not None
    assert tested.data == "40 holdout texts"
    assert tested.low <= tested.value - tested.other_value <= tested.high
    training = sweep.training(base.values)
    assert isinstance(training, EncoderTraining)
    assert training.experiment.model.is_dir()


TRIAL = TrialRecord(number=0, values={"pretrain.rate": 0.1})


def test_a_killed_trial_is_continued_by_the_next_sweep(sweep: MadeSweep, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv(OUTBOX, raising=False)
    for started_ms, (parent, steps) in enumerate({"first": range(1, 4), "second": range(3, 6)}.items(), start=1):
        sweep.outbox.end_killed()
        sweep.outbox.open(parent, TrackedRun(name=parent, tags={WORKSPACE: "sweep"}, started_ms=started_ms))
        with TrialLog(sweep, parent)(TRIAL) as end:
            logger = run_logger("pretrain")
            for step in steps:
                logger.metrics({"loss": 1 / step}, step)
            logger.close()
            if parent == "second":
                end(replace(TRIAL, state="finished", value=0.5, experiment="folder"))
    sweep.outbox.end("second", "FINISHED")
    assert OUTBOX not in os.environ

    client = delivered(sweep.outbox.folder, f"sqlite:///{tmp_path / 'mlflow.db'}")
    runs = runs_of(client)
    statuses = {name: run.info.status for name, run in runs.items()}
    assert statuses == {"first": "KILLED", "second": "FINISHED", "trial 1": "FINISHED"}
    trial = runs["trial 1"]
    assert trial.data.tags["mlflow.parentRunId"] == runs["second"].info.run_id
    assert trial.data.params == {"pretrain.rate": "0.1"}
    assert (trial.data.metrics["nats_per_byte"], trial.data.tags["trial.experiment"]) == (0.5, "folder")
    assert [point.step for point in client.get_metric_history(trial.info.run_id, "loss")] == [1, 2, 3, 4, 5]
    assert not sweep.outbox.runs()


def read(folder: Path, plan: str, params: str = "num_threads: 1") -> tuple[SweepPlan, Config]:
    (folder / "params.yaml").write_text(f"pretrain: {{{params}}}", encoding="utf-8")
    (folder / "sweep.yaml").write_text(plan, encoding="utf-8")
    return read_plan(folder / "sweep.yaml", folder)


def plan_of(space: str, metric: str = "nats_per_byte") -> str:
    return f"metric: {metric}\ntrials: 3\nspace: {{{space}}}"


def test_a_plan_is_read_with_the_params_that_it_changes(tmp_path: Path) -> None:
    ranges = "pretrain.masking.mask_rate: {low: 0.1, high: 0.5}, pretrain.steps: {low: 10, high: 90, step: 10}"
    plan, config = read(tmp_path, plan_of(f"{ranges}, pretrain.schedule.decay: [linear, cosine]"))
    assert (plan.stage, plan.direction, plan.task, plan.pruning) == ("pretrain", "minimize", None, True)
    assert list(map(type, plan.space.values())) == [NumberRange, NumberRange, tuple]
    changed = with_values(config, {"pretrain.masking.mask_rate": 0.4, "pretrain.steps": 30})
    assert value_in(changed.checked, "pretrain.masking.mask_rate") == 0.4
    assert (changed.pretrain.steps, changed.pretrain.tokens, config.pretrain.masking.mask_rate) == (30, None, 0.3)
    plan, config = read(tmp_path, plan_of("finetune.library.epochs: [1, 2]", "validation_score"))
    assert (plan.stage, plan.direction, plan.task) == ("finetune", "maximize", "library")
    assert value_in(config.checked, "finetune.library.epochs") == config.checked.finetune["library"].epochs


STEPS, EPOCHS = "pretrain.steps: [1, 2]", "finetune.{}.epochs: [1, 2]"


@pytest.mark.parametrize(
    ("plan", "params", "told"),
    [
        *(
            (plan, "num_threads: 1", told)
            for plan, told in {
                plan_of(""): "`space`",
                plan_of("pretrain.stepz: [1, 2]"): "unknown key `pretrain.stepz`",
                plan_of("pretrain.masking.mask_rate: {low: 0.1, high: 1.5}"): "mask_rate: 1.5",
                plan_of("pretrain.schedule.decay: [linear, cosy]"): "cosy",
                plan_of("pretrain.steps: {low: 9, high: 2}"): "`low` below `high`",
                plan_of("pretrain.steps: {low: 0, high: 2, log: true}"): "above 0",
                plan_of("tokenize.vocab_size: [100, 200]"): "tokenize.vocab_size",
                f"trials: 3\nspace: {{{STEPS}}}": "`metric`",
                plan_of(STEPS, "validation_score"): "cannot change the figure",
                plan_of(EPOCHS.format("nothing"), "validation_score"): "docsearch, library",
                plan_of(f"{EPOCHS.format('library')}, {EPOCHS.format('docsearch')}", "validation_score"): "one task",
                "[": "not YAML",
            }.items()
        ),
        (plan_of(STEPS), "start: champion", "live model"),
        (plan_of(STEPS), "validation: {every_steps: null}", "no validation passes"),
    ],
)
def test_a_plan_or_params_that_cannot_work_are_refused(tmp_path: Path, plan: str, params: str, told: str) -> None:
    with pytest.raises(ParamsError) as error:
        read(tmp_path, plan, params)
    assert told in str(error.value)
