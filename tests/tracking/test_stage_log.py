"""Curves reach MLflow, have no duplicate points after a resume, and never stop a stage."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from clozeline.tracking.delivery import WORKSPACE, Delivery
from clozeline.tracking.mlflow import prepare
from clozeline.tracking.outbox import OUTBOX, RUN, Outbox, TrackedRun
from clozeline.tracking.run_logger import RunLoggers, run_logger
from clozeline.tracking.stage_log import MachineMetrics, OutboxRunLogger
from tests.make.stores import delivered, run_of


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    outbox = Outbox(tmp_path / "outbox")
    outbox.open("ours", TrackedRun(name="run", tags={WORKSPACE: "here"}, started_ms=1))
    return outbox


def steps(outbox: Outbox, address: str, key: str) -> list[int]:
    client = delivered(outbox.folder, address)
    return [point.step for point in client.get_metric_history(run_of(client, "ours").info.run_id, key)]


def log(outbox: Outbox, points: Mapping[int, float]) -> None:
    logger = OutboxRunLogger(outbox, "ours")
    for step, loss in points.items():
        logger.metrics({"loss": loss}, step)
    logger.close()


def test_without_a_run_in_the_environment_nothing_is_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN, raising=False)
    monkeypatch.setenv(OUTBOX, "nowhere")
    assert run_logger("pretrain") == RunLoggers()


def test_a_run_from_the_environment_receives_points_and_machine_metrics(
    monkeypatch: pytest.MonkeyPatch, outbox: Outbox, address: str
) -> None:
    monkeypatch.setenv(OUTBOX, str(outbox.folder))
    monkeypatch.setenv(RUN, "ours")
    logger = run_logger("pretrain")
    for step in (25, 50):
        logger.metrics({"loss": 1 / step, "learning_rate": 0.1}, step)
    logger.close()
    assert steps(outbox, address, "loss") == [25, 50]
    metrics = run_of(delivered(outbox.folder, address), "ours").data.metrics
    assert 0 <= metrics["system/cpu_utilization_percentage"] <= 100
    assert metrics["system/system_memory_usage_megabytes"] > 0


def test_machine_metrics_are_sampled_at_intervals_with_rising_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    machine = MachineMetrics(every_seconds=5)
    first = machine.due()
    assert machine.due() is None
    monkeypatch.setattr("time.monotonic", lambda: 105.1)
    monkeypatch.setattr("time.time", lambda: first[1] * 5 + 7.0)
    assert machine.due()[1] == first[1] + 1


def test_a_resumed_curve_continues_after_its_last_step(outbox: Outbox, address: str) -> None:
    log(outbox, {1: 1.0, 2: 2.0, 3: 3.0})
    assert steps(outbox, address, "loss") == [1, 2, 3]
    log(outbox, {2: 2.0, 3: 3.0, 4: 4.0})
    assert steps(outbox, address, "loss") == [1, 2, 3, 4]


def test_a_curve_resumed_while_mlflow_was_unreachable_has_no_duplicate_steps(outbox: Outbox, address: str) -> None:
    log(outbox, {1: 1.0, 2: 2.0, 3: 3.0})
    log(outbox, {2: 2.0, 3: 3.0, 4: 4.0})
    assert steps(outbox, address, "loss") == [1, 2, 3, 4]


def test_more_points_than_one_call_may_carry_all_arrive(outbox: Outbox, address: str) -> None:
    for step in range(2500):
        outbox.add_points("ours", {"loss": 1.0}, step)
    assert steps(outbox, address, "loss") == list(range(2500))


def test_refused_points_do_not_delay_the_others(outbox: Outbox, address: str, caplog: pytest.LogCaptureFixture) -> None:
    for key, step in {"what?": 1, "loss": 1, "why?": 2, "error": 2}.items():
        outbox.add_points("ours", {key: 1.0}, step)
    delivery = Delivery(outbox, address)
    assert delivery.deliver() == "done"
    assert delivery.num_lost == 2
    assert caplog.text.count("refused") == 2
    assert "why?" in delivery.refusal
    assert set(run_of(prepare(address), "ours").data.metrics) == {"loss", "error"}
