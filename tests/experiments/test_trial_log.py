"""Each trial of a sweep is a run in MLflow, with the curves of its training; a killed one is continued."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from clozeline.lab.sweep import TrialLog, TrialRecord, outbox_in
from clozeline.tracking.delivery import WORKSPACE
from clozeline.tracking.outbox import OUTBOX, TrackedRun
from clozeline.tracking.run_logger import run_logger
from tests.make.stores import delivered, runs_of

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
