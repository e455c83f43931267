"""Claim: no fault of tracking raises in a stage, or in a flow run once it is open."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from clozeline.artifacts.lock import LockedStage
from clozeline.tracking import NullRunLogger, run_logger, sender
from clozeline.tracking.flow_run import WORKSPACE, FlowRun, StageRecord
from clozeline.tracking.machine import MachineMetrics
from clozeline.tracking.past_runs import attach
from clozeline.tracking.sender import MlflowRunLogger

RUN_ID = "a" * 32


class Monitor:
    """Stand-in for MLflow's monitors that fails in a chosen method."""

    fails_in: str | None = None

    def __init__(self) -> None:
        self._do("__init__")

    def collect_metrics(self) -> None:
        self._do("collect_metrics")

    def aggregate_metrics(self) -> Mapping[str, float]:
        return {type(self).__name__: 1.0}

    def clear_metrics(self) -> None:
        pass

    def _do(self, step: str) -> None:
        if step == self.fails_in:
            raise AttributeError("'NoneType' object has no attribute 'bytes_recv'")  # psutil without /proc/net/dev


class Blind(Monitor):
    fails_in = "__init__"


class Blinded(Monitor):
    fails_in = "collect_metrics"


class Odd(MlflowClient):
    """Client that first raises errors which no list of expected errors contains."""

    def __init__(self, *arguments: Any) -> None:
        self.sent: list[Metric] = []
        self.faults = [KeyError("metrics"), RuntimeError("no credentials")]

    def get_metric_history(self, run_id: str, key: str) -> list[Metric]:
        return []

    def log_batch(self, run_id: str, metrics: list[Metric] = (), **others: Any) -> None:
        if self.faults:
            raise self.faults.pop()
        self.sent += metrics


def no_store(*arguments: Any) -> None:
    raise RuntimeError("no credentials for the bucket")


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.mark.parametrize("uri", ["gopher://host/mlflow", "sqlite:////proc/nowhere/mlflow.db", "http://[", "\0"])
def test_an_address_that_cannot_be_used_tracks_nothing(
    uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("os.environ", {"MLFLOW_TRACKING_URI": uri, "MLFLOW_RUN_ID": RUN_ID})
    monkeypatch.setattr(sender, "MlflowRunLogger", lambda *given: MlflowRunLogger(*given, close_seconds=5))
    log = run_logger()
    log.metrics({"loss": 1.0}, 1)
    log.close()
    assert isinstance(log, NullRunLogger) or "1 metric values of this run are missing" in caplog.text


def test_what_cannot_be_seen_of_a_machine_is_left_out() -> None:
    machine = MachineMetrics(every_seconds=1e-6, kinds=[Blind, Blinded, Monitor])
    for _ in range(2):
        values, _ = machine.due()
        assert values == {"system/Monitor": 1.0}


def test_an_error_that_nobody_thought_of_holds_a_curve_up_and_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "MlflowClient", Odd)
    log = MlflowRunLogger("http://server", RUN_ID, retry_seconds=0.05)
    log.metrics({"loss": 1.0}, 1)
    waiting = threading.Event()
    for _ in range(100):
        if "loss" in [point.key for point in log._client.sent]:
            break
        waiting.wait(0.1)
    log.metrics({"loss": 0.5}, 2)
    log.close()
    assert [point.step for point in log._client.sent if point.key == "loss"] == [1, 2]


def test_a_value_that_is_no_number_is_counted_and_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sender, "MlflowClient", Odd)
    log = MlflowRunLogger("http://server", RUN_ID, retry_seconds=0.05)
    log._client.faults.clear()
    log.metrics({"note": "none yet", "gone": None, "loss": 1.0}, 1)
    log.close()
    assert [point.key for point in log._client.sent if not point.key.startswith("system/")] == ["loss"]
    assert "2 metric values of this run are missing" in caplog.text


def test_a_store_of_files_that_fails_in_its_own_way_stops_no_flow_and_leaves_no_run_open(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = FlowRun.open(address, "run", {WORKSPACE: "host:/project"})
    run_id = run.start_stage("pretrain", "print", {WORKSPACE: "host:/project"})
    assert run_id
    file = tmp_path / "stage.log"
    file.write_text("done")
    monkeypatch.setattr(MlflowClient, "log_artifact", no_store)
    run.end_stage(run_id, StageRecord("executed", LockedStage(cmd="train"), metrics=[], shown=[file]))
    run.end("FINISHED", tags={}, metrics={}, files=[file])
    assert not attach(address, run.run_id, file)
    assert "no credentials for the bucket" in caplog.text
    client = MlflowClient(address)
    assert {client.get_run(known).info.status for known in (run_id, run.run_id)} == {"FINISHED"}


def test_a_metric_file_that_is_cut_off_stops_no_flow(address: str, tmp_path: Path) -> None:
    metrics = tmp_path / "evaluate.json"
    metrics.write_text('{"perplexity": 12')
    run = FlowRun.open(address, "run", {WORKSPACE: "host:/project"})
    run.end("FINISHED", tags={}, metrics={"evaluate": metrics}, files=[])
    assert MlflowClient(address).get_run(run.run_id).info.status == "FINISHED"
