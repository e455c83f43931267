"""Claim: no fault of tracking raises in a stage, or in a flow run once it is open."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from clozeline.records.record import LockedStage
from clozeline.tracking.delivery import WORKSPACE, Delivery
from clozeline.tracking.outbox import Outbox, TrackedRun
from clozeline.tracking.past_runs import attach
from clozeline.tracking.runs import FlowRun, StageRecord
from clozeline.tracking.stage_log import MachineMetrics, OutboxRunLogger
from tests.make.stores import delivered, run_of, runs_of

TAGS = {WORKSPACE: "ours"}


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


def no_store(*arguments: Any) -> None:
    raise RuntimeError("no credentials for the bucket")


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.mark.parametrize("uri", ["gopher://host/mlflow", "sqlite:////proc/nowhere/mlflow.db", "http://[", "\0"])
def test_an_unusable_address_leaves_everything_in_the_outbox(uri: str, tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox")
    outbox.open("run", TrackedRun(name="run", tags=TAGS, started_ms=1))
    log = OutboxRunLogger(outbox, "run")
    log.metrics({"loss": 1.0}, 1)
    log.close()
    delivery = Delivery(outbox, uri)
    assert delivery.deliver() == "no answer"
    assert delivery.reason
    assert any("loss" in points.values for points in outbox.points("run", 0, has_ended=False)[0])


def test_unreadable_machine_metrics_are_left_out() -> None:
    machine = MachineMetrics(every_seconds=1e-6, kinds=[Blind, Blinded, Monitor])
    for _ in range(2):
        values, _ = machine.due()
        assert values == {"system/Monitor": 1.0}


def test_a_non_numeric_value_does_not_affect_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outbox = Outbox(tmp_path / "outbox")
    outbox.open("run", TrackedRun(name="run", tags=TAGS, started_ms=1))
    log = OutboxRunLogger(outbox, "run")
    log.metrics({"note": "none yet", "gone": None, "loss": 1.0}, 1)
    log.close()
    keys = [key for points in outbox.points("run", 0, has_ended=False)[0] for key in points.values]
    assert [key for key in keys if not key.startswith("system/")] == ["loss"]
    assert caplog.text.count("is no number") == 2


def test_an_unexpected_artifact_store_error_stops_no_flow_and_leaves_no_run_open(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "outbox"
    run = FlowRun.open(folder, address, "run", TAGS, retry_seconds=0.05, close_seconds=20)
    file = tmp_path / "stage.log"
    file.write_text("done")
    with monkeypatch.context() as broken:
        broken.setattr(MlflowClient, "log_artifact", no_store)
        stage = run.start_stage("pretrain", "print", TAGS)
        run.end_stage(stage, StageRecord("executed", LockedStage(cmd="train"), metrics=[], shown=[file]))
        run.end("FINISHED", tags={}, metrics={}, files=[])
        client = MlflowClient(address)
        assert {found.info.status for found in client.search_runs(["1"])} == {"FINISHED"}
        assert not attach(address, client.search_runs(["1"])[0].info.run_id, file)
    assert "the next run delivers it" in caplog.text
    assert "no credentials for the bucket" in caplog.text, "the reason"
    stored = delivered(folder, address).list_artifacts(run_of(client, stage).info.run_id)
    assert [found.path for found in stored] == ["stage.log"]


def test_a_truncated_metric_file_stops_no_flow(address: str, tmp_path: Path) -> None:
    metrics = tmp_path / "evaluate.json"
    metrics.write_text('{"perplexity": 12')
    run = FlowRun.open(tmp_path / "outbox", address, "run", TAGS)
    run.end("FINISHED", tags={}, metrics={"evaluate": metrics}, files=[])
    assert runs_of(MlflowClient(address))["run"].info.status == "FINISHED"
