"""Curves reach MLflow, have no duplicate points after a resume, and never stop a stage."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from clozeline.tracking import NullRunLogger, run_logger, sender
from clozeline.tracking.database import experiment_id, prepare
from clozeline.tracking.machine import MachineMetrics
from clozeline.tracking.sender import MlflowRunLogger


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"
    prepare(uri)
    return uri


@pytest.fixture
def client(database: str) -> MlflowClient:
    return MlflowClient(database)


@pytest.fixture
def run_id(client: MlflowClient, database: str) -> Iterator[str]:
    run = client.create_run(experiment_id(client, database))
    yield run.info.run_id
    client.set_terminated(run.info.run_id)


def steps_of(client: MlflowClient, run_id: str, key: str) -> list[int]:
    return [point.step for point in client.get_metric_history(run_id, key)]


def test_without_a_handed_over_run_nothing_is_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///nowhere.db")
    assert isinstance(run_logger(), NullRunLogger)


def test_a_run_is_told_how_busy_the_machine_is(database: str, client: MlflowClient, run_id: str) -> None:
    MlflowRunLogger(database, run_id).close()
    metrics = client.get_run(run_id).data.metrics
    assert 0 <= metrics["system/cpu_utilization_percentage"] <= 100
    assert metrics["system/system_memory_usage_megabytes"] > 0


def test_the_machine_is_looked_at_now_and_then_and_its_steps_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    machine = MachineMetrics(every_seconds=5)
    first = machine.due()
    assert machine.due() is None
    monkeypatch.setattr("time.monotonic", lambda: 105.1)
    monkeypatch.setattr("time.time", lambda: first[1] * 5 + 7.0)
    assert machine.due()[1] == first[1] + 1


def test_a_handed_over_run_receives_points(
    monkeypatch: pytest.MonkeyPatch, database: str, client: MlflowClient, run_id: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    log = run_logger()
    for step in (25, 50):
        log.metrics({"loss": 1 / step, "learning_rate": 0.1}, step)
    log.close()
    assert steps_of(client, run_id, "loss") == [25, 50]


def test_a_resumed_curve_goes_on_after_its_last_step(database: str, client: MlflowClient, run_id: str) -> None:
    for steps in ([1, 2, 3], [2, 3, 4]):
        log = MlflowRunLogger(database, run_id)
        for step in steps:
            log.metrics({"loss": float(step)}, step)
        log.close()
    assert steps_of(client, run_id, "loss") == [1, 2, 3, 4]


def test_more_points_than_one_call_may_carry_all_arrive(database: str, client: MlflowClient, run_id: str) -> None:
    log = MlflowRunLogger(database, run_id)
    for step in range(2500):
        log.metrics({"loss": 1.0}, step)
    log.close()
    assert steps_of(client, run_id, "loss") == list(range(2500))


def test_a_server_that_is_down_costs_a_stage_no_time_and_the_lost_points_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
    log = MlflowRunLogger(address, "a" * 32, close_seconds=5)
    started = time.monotonic()
    for step in range(10):
        log.metrics({"loss": 1.0}, step)
    assert time.monotonic() - started < 1
    log.close()
    assert "10 metric values of this run are missing" in caplog.text


def test_what_the_server_refuses_for_ever_does_not_hold_back_the_rest(
    database: str,
    client: MlflowClient,
    run_id: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sender, "_POINTS_PER_CALL", 2)
    log = MlflowRunLogger(database, run_id)
    log.metrics({"what?": 1.0, "why?": 1.0}, 1)
    log.metrics({"loss": 1.0}, 1)
    log.close()
    assert steps_of(client, run_id, "loss") == [1]
    assert "refused" in caplog.text
    assert "2 metric values" in caplog.text


def test_the_database_is_made_once_and_a_second_call_changes_nothing(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}"
    first = experiment_id(prepare(uri), uri)
    assert experiment_id(prepare(uri), uri) == first
