"""Claim: a sweep ends with a table of every trial, the sweep, its diff, and what to type next."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from clozeline.cli import experiments as verb
from clozeline.cluster.store import VARIABLE
from clozeline.lab import sweep
from clozeline.lab.experiment import Corpus
from clozeline.lab.plan import SweepPlan
from clozeline.lab.sweep import FinalFigure, Sweep
from clozeline.lab.trials import TrialRecord, Trials
from clozeline.params.editing import Config
from clozeline.system.errors import TransientError
from clozeline.system.workspace import Workspace
from tests.conftest import PROJECT

KEY = "pretrain.masking.mask_rate"
FIGURES = (1.75, 1.25, None, 1.5)


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """A sweep of four trials in a project, of which the second wins and the third fails."""
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(PROJECT / "params.yaml", "params.yaml")
    plan = SweepPlan.model_validate(
        {"metric": "nats_per_byte", "trials": 4, "space": {KEY: {"low": 0.1, "high": 0.9}}, "pruning": False}
    )
    sweep = Sweep(plan, Config(tmp_path / "params.yaml"), Corpus(tmp_path, "a hash"), tmp_path)
    monkeypatch.setattr(Trials, "_proposed", lambda trials, number, space: {KEY: round(0.4 + number / 100, 2)})

    def run(trial: TrialRecord) -> TrialRecord:
        value = FIGURES[trial.number]
        state = replace(trial, value=value, state="failed" if value is None else "finished")
        return replace(state, reason="the loss is not finite" if value is None else "")

    while sweep.trials.run_next(sweep.first, run):
        pass
    return sweep


def test_every_trial_the_winner_and_its_diff_are_told(
    found: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tested = FinalFigure(
        figure="nats_per_byte", data="40 holdout texts", value=1.3, other="params.yaml", other_value=1.8, low=-1, high=0
    )
    monkeypatch.setattr(sweep, "_tested", lambda *_: tested)
    monkeypatch.setenv("COLUMNS", "120")
    verb._end(Workspace(Path.cwd()), found, write=True)
    assert Config("params.yaml").checked.pretrain.masking.mask_rate == pytest.approx(0.41), "the winner is written"
    told = capsys.readouterr().out
    rows = [line.split("│")[1:-1] for line in told.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row[:3]] for row in rows] == [
        ["1", "1.7500", "finished"],
        ["2", "1.2500", "finished"],
        ["3", "", "failed: the loss is not finite"],
        ["4", "1.5000", "finished"],
    ]
    assert "winner: trial 2, nats_per_byte 1.2500" in told
    assert "params.yaml as it is: 1.7500" in told
    assert "on 40 holdout texts: nats_per_byte 1.3000" in told
    assert "mask_rate: 0.41" in Path("reports/sweep.diff").read_text(encoding="utf-8")


def test_a_cluster_that_does_not_answer_is_named_before_any_stage_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "ray://127.0.0.1:1")
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:1"):
        verb.shared_corpus(Workspace(tmp_path))
