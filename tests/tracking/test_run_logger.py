"""Curves reach MLflow without duplicate points after a resume, and TensorBoard as two runs; they never stop a stage."""

import sys
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from clozeline.system.errors import ClozelineError
from clozeline.tracking.delivery import Delivery
from clozeline.tracking.mlflow import prepare
from clozeline.tracking.outbox import OUTBOX, RUN, Outbox, TrackedRun
from clozeline.tracking.run_logger import TENSORBOARD, MachineMetrics, OutboxRunLogger, RunLoggers, run_logger
from tests.make.stores import delivered, run_of
from tests.tracking.conftest import TAGS


def test_tensorboard_reads_training_and_validation_as_two_runs_and_a_writer_that_fails_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    monkeypatch.setenv(TENSORBOARD, str(tmp_path))
    monkeypatch.delenv(OUTBOX, raising=False)
    with closing(run_logger("finetune library")) as log:
        log.metrics({"loss": 4.0, "learning_rate": 0.1}, 25)
        log.metrics({"validation_loss": 4.5, "seed_1.validation_score": 0.5}, 50)
        monkeypatch.setattr(SummaryWriter, "add_scalar", Mock(side_effect=OSError("the disk is full")))
        for step in (75, 100):
            log.metrics({"loss": 3.0}, step)
    assert caplog.text.count("the disk is full") == 1
    read = {}
    for events in tmp_path.rglob("events.out.*"):
        found = EventAccumulator(str(events)).Reload()
        names = found.Tags()["scalars"]
        read[events.parent.name] = {name: [(one.step, one.value) for one in found.Scalars(name)] for name in names}
    assert read == {
        "training": {"loss": [(25, 4.0)], "learning_rate": [(25, pytest.approx(0.1))]},
        "validation": {"loss": [(50, 4.5)], "seed_1.score": [(50, 0.5)]},
    }


def test_a_missing_extra_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setenv(TENSORBOARD, "events")
    with pytest.raises(ClozelineError, match="TensorBoard is not installed") as caught:
        run_logger("pretrain")
    assert "pip install 'clozeline[tensorboard]'" in caught.value.do
    monkeypatch.delenv(TENSORBOARD)
    monkeypatch.delenv(RUN, raising=False)
    assert run_logger("pretrain") == RunLoggers(), "nothing is tracked"


@pytest.fixture
def opened(outbox: Outbox) -> Outbox:
    """The outbox with the run `ours`."""
    outbox.open("ours", TrackedRun(name="run", tags=TAGS, started_ms=1))
    return outbox


def steps(outbox: Outbox, address: str) -> list[int]:
    client = delivered(outbox.folder, address)
    return [point.step for point in client.get_metric_history(run_of(client, "ours").info.run_id, "loss")]


def log(outbox: Outbox, *steps: int) -> None:
    with closing(OutboxRunLogger(outbox, "ours")) as logger:
        for step in steps:
            logger.metrics({"loss": 1.0}, step)


def test_a_run_from_the_environment_receives_points_and_machine_metrics(
    monkeypatch: pytest.MonkeyPatch, opened: Outbox, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(OUTBOX, str(opened.folder))
    monkeypatch.setenv(RUN, "ours")
    with closing(run_logger("pretrain")) as logger:
        for step in (25, 50):
            logger.metrics({"note": "none yet", "gone": None, "loss": 1 / step, "learning_rate": 0.1}, step)
    assert caplog.text.count("is no number") == 4
    assert steps(opened, address) == [25, 50]
    metrics = run_of(delivered(opened.folder, address), "ours").data.metrics
    assert {key for key in metrics if not key.startswith("system/")} == {"loss", "learning_rate"}
    assert 0 <= metrics["system/cpu_utilization_percentage"] <= 100
    assert metrics["system/system_memory_usage_megabytes"] > 0


def test_unreadable_machine_metrics_are_left_out() -> None:
    error = AttributeError("'NoneType' object has no attribute 'bytes_recv'")  # psutil without /proc/net/dev
    blind, blinded = Mock(side_effect=error), Mock(return_value=Mock(collect_metrics=Mock(side_effect=error)))
    seeing = Mock(return_value=Mock(aggregate_metrics=lambda: {"cpu": 1}))
    machine = MachineMetrics([blind, blinded, seeing])
    assert [machine.values(), machine.values()] == [{"system/cpu": 1.0}] * 2


@pytest.mark.parametrize("is_away", [False, True])
def test_a_resumed_curve_continues_after_its_last_step(opened: Outbox, address: str, is_away: bool) -> None:
    log(opened, 1, 2, 3)
    assert is_away or steps(opened, address) == [1, 2, 3]
    log(opened, *range(2, 2500))
    assert steps(opened, address) == list(range(1, 2500)), "more than one call may carry"


def test_refused_points_do_not_delay_the_others(opened: Outbox, address: str, caplog: pytest.LogCaptureFixture) -> None:
    for key, step in {"what?": 1, "loss": 1, "why?": 2, "error": 2}.items():
        opened.add_points("ours", {key: 1.0}, step)
    delivery = Delivery(opened, address)
    assert (delivery.deliver(), delivery.num_lost) == ("done", 2)
    assert caplog.text.count("refused") == 2
    assert "why?" in delivery.refusal
    assert set(run_of(prepare(address), "ours").data.metrics) == {"loss", "error"}
