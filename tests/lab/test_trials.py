"""Claim: processes share the trials of a sweep; one that dies or is stopped, at any point, leaves its trial to another;
proposals depend on the trials before them alone, stay in the space, and find where the figure is good.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clozeline.lab import trials as module
from clozeline.lab.plan import SweepPlan
from clozeline.lab.trials import TrialRecord, Trials

RATE, DECAY, STEPS = "pretrain.optimizer.learning_rate", "pretrain.schedule.decay", "pretrain.steps"
SPACE = {
    RATE: {"low": 1e-4, "high": 1e-1, "log": True},
    DECAY: ["linear", "cosine"],
    STEPS: {"low": 8, "high": 64, "step": 8},
}
PLAN = SweepPlan.model_validate({"metric": "nats_per_byte", "trials": 30, "space": SPACE})
FIRST = {RATE: 0.01, DECAY: "linear", STEPS: 8}


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


def finish(trial: TrialRecord) -> TrialRecord:
    """End a trial with a figure that is best at a rate of 1e-3, whatever the steps are."""
    figure = abs(float(trial.values[RATE] or 0) - 1e-3) + (0.01 if trial.values[DECAY] == "linear" else 0.0)
    return replace(trial, state="finished", value=figure)


def run_all(trials: Trials, run: Callable[[TrialRecord], TrialRecord] = finish) -> list[TrialRecord]:
    trials.settle()
    while trials.run_next(FIRST, run):
        pass
    return trials.read()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    """A sweep of thirty trials."""
    run_all(trials := of(tmp_path_factory.mktemp("whole"), 30))
    return trials


def test_two_processes_run_different_trials_and_none_is_left_in_the_end(tmp_path: Path) -> None:
    first, second = of(tmp_path, 2), of(tmp_path, 2)

    def beside(trial: TrialRecord) -> TrialRecord:
        other = second.run_next(FIRST, finish)
        assert other is not None
        assert (trial.number, other.number) == (0, 1)
        assert second.run_next(FIRST, finish) is None
        return finish(trial)

    assert first.run_next(FIRST, beside) is not None
    assert [trial.state for trial in first.read()] == ["finished", "finished"]
    assert len(run_all(of(tmp_path, 3))) == 3


@pytest.mark.parametrize("place", ["study.Study.add_trial", "trial.Trial.set_user_attr", ""])
def test_a_kill_at_any_point_changes_no_proposal(place: str, whole: Trials, tmp_path, monkeypatch) -> None:
    trials = of(tmp_path, 3)
    trials.run_next(FIRST, finish)
    with monkeypatch.context() as patched:
        if place:
            patched.setattr(f"optuna.{place}", kill)
        with pytest.raises(Killed):
            trials.run_next(FIRST, lambda trial: trials.report(trial, 10, 2.5) or kill())
    found = run_all(of(tmp_path, 3))
    assert [trial.values for trial in found] == [trial.values for trial in whole.read()[:3]]
    assert [trial.state for trial in found] == ["finished"] * 3
    assert found[1].validations == ({} if place else {10: 2.5}), "its figures stay"


def test_proposals_lie_in_the_space_and_later_ones_are_better_and_what_mattered_is_told(whole: Trials) -> None:
    thirty = whole.read()
    assert thirty[0].values == FIRST
    for trial in thirty:
        rate = trial.values[RATE]
        assert isinstance(rate, float)
        assert 1e-4 <= rate == float(f"{rate:.3g}") <= 1e-1
        assert trial.values[DECAY] in ("linear", "cosine")
        assert trial.values[STEPS] in range(8, 65, 8)
    first, last = (sum(trial.value or 0 for trial in some) for some in (thirty[:10], thirty[-10:]))
    assert last < first / 2
    shares = whole.importances()
    assert sum(shares.values()) == pytest.approx(1)
    assert max(shares, key=lambda key: shares[key]) == RATE


@pytest.mark.parametrize("pruning", [True, False])
def test_a_trial_worse_than_half_of_the_others_is_hopeless(tmp_path: Path, pruning: bool) -> None:
    trials = of(tmp_path, 6, pruning=pruning)
    verdicts = []

    def run(trial: TrialRecord) -> TrialRecord:
        for step, figure_of_last in ((10, 2.5), (20, 1.5)):
            figure = figure_of_last if trial.number == 5 else trial.number
            verdicts.append(trials.report(trial, step, figure))
        return finish(trial)

    run_all(trials, run)
    assert verdicts == [False] * 10 + [pruning, False]
