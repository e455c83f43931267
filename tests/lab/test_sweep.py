"""Claim: processes share the trials of a sweep; one that dies or is stopped, at any point, leaves its trial to another;
proposals depend on the trials before them alone, stay in the space, and find where the figure is good.
"""

import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from clozeline.lab import sweep as module
from clozeline.lab import winner
from clozeline.lab.experiment import Corpus
from clozeline.lab.plan import SweepPlan
from clozeline.lab.sweep import EncoderTraining, Sweep, TrialLog, TrialRecord, Trials, outbox_in, run_trials
from clozeline.lab.winner import FinalFigure, diff_of, outcome_of
from clozeline.params.editing import Config
from clozeline.system.errors import ArtifactError, TrainingError
from clozeline.tracking.delivery import WORKSPACE
from clozeline.tracking.outbox import OUTBOX, TrackedRun
from clozeline.tracking.run_logger import run_logger
from tests.conftest import PROJECT
from tests.make.stores import delivered, runs_of

RATE, DECAY, STEPS = "pretrain.optimizer.learning_rate", "pretrain.schedule.decay", "pretrain.steps"
PLAN = SweepPlan.model_validate(
    {
        "metric": "nats_per_byte",
        "trials": 30,
        "space": {
            RATE: {"low": 1e-4, "high": 1e-1, "log": True},
            DECAY: ["linear", "cosine"],
            STEPS: {"low": 8, "high": 64, "step": 8},
        },
    }
)
FIRST = {RATE: 0.01, DECAY: "linear", STEPS: 8}
KILLED = """
import os, pickle, signal, sys
from pathlib import Path

trials, first = pickle.loads(Path(sys.argv[1]).read_bytes())

def run(trial):
    trials.look(trial, 10, 2.5)
    os.kill(os.getpid(), signal.SIGKILL)

trials.run_next(first, run)
"""


class Killed(BaseException):
    """Ends a trial as a kill does: nobody says that it ended."""


def kill(*_: object, **__: object) -> TrialRecord:
    raise Killed


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HEARTBEAT_SECONDS", 1)
    monkeypatch.setattr(module, "_GRACE_SECONDS", 1)


def of(folder: Path, num_trials: int, **fields: object) -> Trials:
    return Trials(folder, PLAN.model_copy(update={"trials": num_trials, **fields}))


def figure_of(trial: TrialRecord) -> float:
    """Return a figure that is best at a rate of 1e-3, whatever the steps are."""
    return abs(float(trial.values[RATE] or 0) - 1e-3) + (0.01 if trial.values[DECAY] == "linear" else 0.0)


def finish(trial: TrialRecord) -> TrialRecord:
    return replace(trial, state="finished", value=figure_of(trial))


def run_all(trials: Trials, run: Callable[[TrialRecord], TrialRecord] = finish) -> list[TrialRecord]:
    trials.settle()
    while trials.run_next(FIRST, run):
        pass
    return trials.read()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    """A sweep of thirty trials."""
    trials = of(tmp_path_factory.mktemp("whole"), 30)
    run_all(trials)
    return trials


@pytest.fixture(scope="module")
def thirty(whole: Trials) -> list[TrialRecord]:
    return whole.read()


def test_two_processes_run_different_trials_and_none_is_left_in_the_end(tmp_path: Path) -> None:
    first, second = of(tmp_path, 2), of(tmp_path, 2)
    none_left = []

    def beside(trial: TrialRecord) -> TrialRecord:
        other = second.run_next(FIRST, finish)
        assert other is not None
        assert (trial.number, other.number) == (0, 1)
        none_left.append(second.run_next(FIRST, finish))
        return finish(trial)

    assert first.run_next(FIRST, beside) is not None
    assert none_left == [None]
    assert [trial.state for trial in first.read()] == ["finished", "finished"]
    assert len(run_all(of(tmp_path, 3))) == 3


def test_the_trial_of_a_killed_process_goes_on_with_its_values_and_figures(tmp_path: Path) -> None:
    told = tmp_path / "told.pickle"
    trials = of(tmp_path / "sweep", 2)
    assert trials.run_next(FIRST, finish) is not None
    told.write_bytes(pickle.dumps((trials, FIRST)))
    command = [sys.executable, "-c", KILLED, told]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(PROJECT)}, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    lost = trials.read()[1]
    assert (lost.state, lost.looks) == ("running", {10: 2.5})
    seen = []

    def run(trial: TrialRecord) -> TrialRecord:
        seen.append(trial)
        trials.look(trial, 10, 2.5)  # a training that continues from before this pass repeats it
        return finish(trial)

    found = run_all(trials, run)
    assert seen == [lost]
    assert [trial.state for trial in found] == ["finished", "finished"]
    assert found[1].looks == {10: 2.5}


@pytest.mark.parametrize(
    "place",
    [
        "study.Study.add_trial",
        "study.Study.ask",
        "study._optimize.get_heartbeat_thread",
        "trial.Trial.set_user_attr",
        "storages.RDBStorage.set_trial_intermediate_value",
        "",  # while it trains
    ],
)
def test_a_kill_at_any_point_changes_no_proposal(
    place: str, thirty: list[TrialRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = of(tmp_path, 4)
    for _ in range(2):
        trials.run_next(FIRST, finish)
    with monkeypatch.context() as patched:
        if place:
            patched.setattr(f"optuna.{place}", kill)
        with pytest.raises(Killed):
            trials.run_next(FIRST, lambda trial: trials.look(trial, 10, 2.5) or kill())
    found = run_all(of(tmp_path, 4))
    assert [trial.values for trial in found] == [trial.values for trial in thirty[:4]]
    assert [trial.state for trial in found] == ["finished"] * 4


@pytest.mark.parametrize("reason", [SystemExit(143), KeyboardInterrupt(), RuntimeError()])
def test_a_stopped_trial_is_waiting_at_once(reason: BaseException, tmp_path: Path) -> None:
    def stop(trial: TrialRecord) -> TrialRecord:
        raise reason

    trials = of(tmp_path, 1)
    with pytest.raises(type(reason)):
        trials.run_next(FIRST, stop)
    assert [trial.state for trial in trials.read()] == ["running"]
    taken = trials.run_next(FIRST, finish)
    assert taken is not None
    assert taken.state == "finished"


def test_a_process_that_stood_still_leaves_its_trial_to_the_one_that_took_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = of(tmp_path, 1), of(tmp_path, 1)

    def stand_still(trial: TrialRecord) -> TrialRecord:
        second.settle()
        assert second.run_next(FIRST, lambda trial: replace(finish(trial), value=1.5)) is not None
        first.look(trial, 10, 2.5)
        return finish(trial)

    monkeypatch.setattr("optuna.storages._heartbeat.HeartbeatThread.start", lambda thread: None)
    monkeypatch.setattr("optuna.storages._heartbeat.HeartbeatThread.join", lambda thread: None)
    ended = first.run_next(FIRST, stand_still)
    assert ended is not None
    assert (ended.state, ended.value) == ("finished", 1.5)


def test_failures_of_values_are_not_repeated(tmp_path: Path) -> None:
    found = run_all(of(tmp_path, 2), lambda trial: replace(trial, state="failed", reason="the loss is not finite"))
    assert [(trial.state, trial.reason) for trial in found] == [("failed", "the loss is not finite")] * 2


def test_a_sweep_of_files_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "trials").mkdir()
    with pytest.raises(ArtifactError) as refused:
        of(tmp_path, 2).read()
    assert f"rm -r {tmp_path}" in refused.value.do


def test_proposals_lie_in_the_space(thirty: list[TrialRecord]) -> None:
    assert thirty[0].values == FIRST
    for trial in thirty:
        rate = trial.values[RATE]
        assert isinstance(rate, float)
        assert 1e-4 <= rate == float(f"{rate:.3g}") <= 1e-1
        assert trial.values[DECAY] in ("linear", "cosine")
        assert trial.values[STEPS] in range(8, 65, 8)


def test_later_proposals_are_better_and_what_mattered_is_told(whole: Trials, tmp_path: Path) -> None:
    thirty = whole.read()
    first, last = (sum(trial.value or 0 for trial in some) for some in (thirty[:10], thirty[-10:]))
    assert last < first / 2
    shares = whole.importances()
    assert sum(shares.values()) == pytest.approx(1)
    assert max(shares, key=lambda key: shares[key]) == RATE
    few = of(tmp_path, 3)
    run_all(few)
    assert few.importances() == {}


def test_a_first_trial_outside_the_space_changes_no_proposal(thirty: list[TrialRecord], tmp_path: Path) -> None:
    trials = of(tmp_path, 2)
    for _ in range(2):
        trials.run_next({**FIRST, RATE: 5.0}, finish)
    outside, second = trials.read()
    assert outside.values[RATE] == 5.0
    assert second.values == thirty[1].values


@pytest.mark.parametrize(("pruning", "is_pruned"), [(True, True), (False, False)])
def test_a_trial_worse_than_half_of_the_others_is_hopeless(tmp_path: Path, pruning: bool, is_pruned: bool) -> None:
    trials = of(tmp_path, 6, pruning=pruning)
    verdicts = []

    def run(trial: TrialRecord) -> TrialRecord:
        is_last = trial.number == 5
        verdicts.append(trials.look(trial, 10, 2.5 if is_last else trial.number))
        verdicts.append(trials.look(trial, 20, 1.5 if is_last else trial.number))
        return finish(trial)

    run_all(trials, run)
    assert verdicts[:10] == [False] * 10
    assert verdicts[10:] == [is_pruned, False]


KEY = "pretrain.masking.mask_rate"
RATES = (0.3, 0.4, 0.9, 0.2, 0.5)
"""Mask rates in the order of the trials; the first is that of params.yaml."""


@dataclass
class Made:
    """Training whose metric is the distance of the mask rate from 0.45; at 0.9 it fails."""

    folder: Path
    rate: float
    forgotten: list[float]

    def run(self, on_look: Callable[[int, float], None]) -> float:
        if self.rate == 0.9:
            raise TrainingError("the loss is not finite", given="nan", expected="a number", do="lower the rate")
        for step in (10, 20):
            on_look(step, abs(self.rate - 0.45))
        return abs(self.rate - 0.45)

    def forget(self) -> None:
        self.forgotten.append(self.rate)


@dataclass(frozen=True)
class MadeSweep(Sweep):
    forgotten: list[float] = field(default_factory=list)

    def training(self, values: object) -> Made:  # type: ignore[override]  # the same interface
        rate = values[KEY]  # type: ignore[index]
        return Made(self.kept / f"{rate}", rate, self.forgotten)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proposals from a list in the place of Optuna's; a trial is hopeless if it is worse than every other."""
    noted = Trials.look

    def look(trials: Trials, trial: TrialRecord, step: int, figure: float) -> bool:
        noted(trials, trial, step, figure)
        return trials.plan.pruning and all(figure > one.value for one in trials.read() if one.value is not None)

    monkeypatch.setattr(Trials, "_proposed", lambda trials, number, space: {KEY: RATES[number]})
    monkeypatch.setattr(Trials, "look", look)


@pytest.fixture
def sweep(tmp_path: Path, drawn: None) -> MadeSweep:
    plan = SweepPlan.model_validate(
        {"metric": "nats_per_byte", "trials": 5, "space": {KEY: {"low": 0.1, "high": 0.95}}}
    )
    corpus = Corpus(tmp_path, tmp_path, tmp_path, "a hash")
    return MadeSweep(plan, Config(), corpus, tmp_path / "kept")


@contextmanager
def unlogged(trial: TrialRecord) -> Iterator[Callable[[TrialRecord], None]]:
    yield lambda ended: None


def test_trials_end_finished_pruned_or_failed_and_only_weights_of_the_first_and_the_best_stay(
    sweep: MadeSweep,
) -> None:
    run_trials(sweep, unlogged)
    trials = sweep.trials.read()
    assert [trial.state for trial in trials] == ["finished", "finished", "failed", "pruned", "finished"]
    assert "not finite (nan)" in trials[2].reason
    assert trials[3].looks == pytest.approx({10: 0.25})
    assert trials[3].value is None
    best = sweep.best_of(trials)
    assert best is not None
    assert best.number == 1, "the earliest of equal ones"
    assert set(sweep.forgotten) == {0.2, 0.5}


def test_a_figure_of_0_counts_and_one_of_a_pruned_trial_does_not(sweep: MadeSweep) -> None:
    trials = [
        TrialRecord(number=number, values={}, state="finished", value=value) for number, value in enumerate([0.5, 0.0])
    ]
    trials.append(TrialRecord(number=2, values={}, state="pruned", value=-1.0))
    found = sweep.best_of(trials)
    assert found is not None
    assert found.number == 1
    assert sweep.best_of(trials[2:]) is None


@pytest.mark.parametrize("figure", [math.nan, math.inf])
def test_a_figure_that_is_not_finite_is_a_failure_and_the_sweep_goes_on(
    sweep: MadeSweep, figure: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Made, "run", lambda made, on_look: figure if made.rate == 0.3 else made.rate)
    run_trials(sweep, unlogged)
    first, *others = sweep.trials.read()
    assert (first.state, first.value, first.reason) == ("failed", None, f"nats_per_byte is {figure}")
    assert [trial.state for trial in others] == ["finished"] * 4
    best = sweep.best_of(sweep.trials.read())
    assert best is not None
    assert best.values == {KEY: 0.2}


def test_without_pruning_every_trial_finishes(sweep: MadeSweep) -> None:
    whole = MadeSweep(sweep.plan.model_copy(update={"pruning": False}), sweep.config, sweep.corpus, sweep.kept)
    assert whole.folder != sweep.folder
    run_trials(whole, unlogged)
    assert [trial.state for trial in whole.trials.read()].count("finished") == 4


def test_more_trials_add_to_those_that_there_are(sweep: MadeSweep) -> None:
    fewer = MadeSweep(sweep.plan.model_copy(update={"trials": 2}), sweep.config, sweep.corpus, sweep.kept)
    run_trials(fewer, unlogged)
    assert fewer.folder == sweep.folder
    run_trials(sweep, unlogged)
    assert len(sweep.trials.read()) == 5


def test_test_data_are_used_once_for_each_winner_other_than_the_params_as_they_are(
    sweep: MadeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []

    def tested(sweep: Sweep, best: TrialRecord, base: TrialRecord) -> FinalFigure:
        used.append(best.number)
        return FinalFigure(
            figure="f", data="d", value=1, other="params.yaml", other_value=2, low=-2, high=-1, p_value=0.1
        )

    monkeypatch.setattr(winner, "_tested", tested)
    first = MadeSweep(sweep.plan.model_copy(update={"trials": 1}), sweep.config, sweep.corpus, sweep.kept)
    run_trials(first, unlogged)
    _, outcome = outcome_of(first)
    assert (outcome.winner, outcome.tested, outcome.num_uses, used) == (0, None, 0, [])
    run_trials(sweep, unlogged)
    assert outcome_of(sweep) == outcome_of(sweep)
    _, outcome = outcome_of(sweep)
    assert (outcome.winner, outcome.num_uses, used) == (1, 1, [1])


def test_a_failure_of_the_params_as_they_are_ends_the_sweep(sweep: MadeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sweep, "first", {KEY: 0.9})
    with pytest.raises(TrainingError):
        run_trials(sweep, unlogged)
    with pytest.raises(TrainingError, match="no trial of the sweep has a figure"):
        outcome_of(sweep)


def test_the_winners_change_is_a_diff_of_params_yaml(tmp_path: Path) -> None:
    text = "pretrain:\n  masking: {unit: word, mask_rate: 0.2}  # words\n  steps: 9"
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    diff = diff_of(tmp_path, {KEY: 0.4, "pretrain.steps": 9})
    assert diff.splitlines()[:2] == ["--- a/params.yaml", "+++ b/params.yaml"]
    changed = [line for line in diff.splitlines()[3:] if line[0] in "+-"]
    assert [line[0] for line in changed] == ["-", "+"]
    assert "mask_rate: 0.4" in changed[1]
    assert diff_of(tmp_path, {KEY: 0.2}) == ""


def test_a_winning_encoder_is_compared_with_the_params_as_they_are_on_text_that_no_trial_saw(
    config: Config, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SweepPlan.model_validate(
        {"metric": "best_validation_accuracy", "trials": 1, "space": {"pretrain.steps": [10, 40]}, "pruning": False}
    )
    config["pretrain"]["validation"]["every_steps"] = 20
    sweep = Sweep(plan, config, corpus, tmp_path / "kept")
    run_trials(sweep, unlogged)
    (base,) = sweep.trials.read()
    assert list(base.looks) == [20, 40]
    assert base.value == max(base.looks.values())
    more = Sweep(plan.model_copy(update={"trials": 2}), config, corpus, tmp_path / "kept")
    monkeypatch.setattr(Trials, "_proposed", lambda trials, number, space: {"pretrain.steps": 80})
    assert more.trials.run_next({}, lambda trial: replace(trial, state="finished", value=0.9)) is not None
    _, outcome = outcome_of(sweep)
    tested = outcome.tested
    assert tested is not None
    assert tested.data == "40 holdout texts"
    assert tested.low <= tested.value - tested.other_value <= tested.high
    training = sweep.training(base.values)
    assert isinstance(training, EncoderTraining)
    assert training.experiment.model.is_dir()


TRIAL = TrialRecord(number=0, values={"pretrain.rate": 0.1})


def log_in(folder: Path, parent: str, started_ms: int) -> TrialLog:
    """Open the run of a sweep that began at `started_ms`."""
    outbox = outbox_in(folder)
    outbox.end_killed()
    outbox.open(parent, TrackedRun(name=parent, tags={WORKSPACE: "sweep"}, started_ms=started_ms))
    return TrialLog(outbox, parent, "sweep", "nats_per_byte")


def train(steps: range) -> None:
    logger = run_logger("pretrain")
    for step in steps:
        logger.metrics({"loss": 1 / step}, step)
    logger.close()


def test_a_killed_trial_is_continued_by_the_next_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OUTBOX, raising=False)
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with log_in(tmp_path, "first", 1)(TRIAL):
        train(range(1, 4))
    log = log_in(tmp_path, "second", 2)
    with log(TRIAL):
        pass  # its worker was killed, and another one takes the trial
    with log(TRIAL) as end:
        train(range(3, 6))
        end(replace(TRIAL, state="finished", value=0.5, experiment="folder"))
    log.outbox.end("second", "FINISHED")
    assert OUTBOX not in os.environ

    client = delivered(log.outbox.folder, address)
    runs = runs_of(client)
    assert {name: run.info.status for name, run in runs.items()} == {
        "first": "KILLED",
        "second": "FINISHED",
        "trial 1": "FINISHED",
    }
    trial = runs["trial 1"]
    assert trial.data.tags["mlflow.parentRunId"] == runs["second"].info.run_id
    assert trial.data.params == {"pretrain.rate": "0.1"}
    assert (trial.data.metrics["nats_per_byte"], trial.data.tags["trial.experiment"]) == (0.5, "folder")
    assert [point.step for point in client.get_metric_history(trial.info.run_id, "loss")] == [1, 2, 3, 4, 5]
    assert not log.outbox.runs()
