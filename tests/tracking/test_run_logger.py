"""Curves reach MLflow without duplicate points after a resume, and TensorBoard as two runs; they never stop a stage."""

import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.system.errors import ClozelineError
from clozeline.tracking.delivery import Delivery
from clozeline.tracking.mlflow import prepare
from clozeline.tracking.outbox import OUTBOX, RUN, Outbox, TrackedRun
from clozeline.tracking.run_logger import TENSORBOARD, MachineMetrics, OutboxRunLogger, RunLoggers, run_logger
from tests.make.processes import wait_for
from tests.make.stores import delivered, run_of
from tests.tracking.conftest import TAGS

Points = dict[str, list[tuple[str, float, int]]]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Points]:
    """The points that TensorBoard's writer got, by the folder of its run; the writer stands in for the real package."""
    points: Points = {}

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            *_, training, part = Path(folder).relative_to(tmp_path).parts
            self.points = points.setdefault(f"{training.partition(' 20')[0]}/{part}", [])

        def add_scalar(self, key: str, value: float, step: int) -> None:
            if step > 100:
                raise OSError("the disk is full")
            self.points.append((key, value, step))

        def close(self) -> None:
            self.points.append(("closed", 0.0, 0))

    package, module = ModuleType("tensorboard"), ModuleType("torch.utils.tensorboard")
    package.__spec__ = ModuleSpec("tensorboard", None)
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboard", package)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setenv(TENSORBOARD, str(tmp_path / "events"))
    monkeypatch.delenv(OUTBOX, raising=False)
    return points


def test_training_and_validation_are_two_runs_with_the_same_names_of_curves(written: Points) -> None:
    with closing(run_logger("finetune library")) as log:
        log.metrics({"loss": 4.0, "learning_rate": 0.1}, 25)
        log.metrics({"validation_loss": 4.5}, 50)
        log.metrics({"seed_1.validation_score": 0.5}, 50)
    closed = ("closed", 0.0, 0)
    assert written == {
        "finetune library/training": [("loss", 4.0, 25), ("learning_rate", 0.1, 25), closed],
        "finetune library/validation": [("loss", 4.5, 50), ("seed_1.score", 0.5, 50), closed],
    }


def test_tensorboard_reads_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv(TENSORBOARD, str(tmp_path))
    monkeypatch.delenv(OUTBOX, raising=False)
    with closing(run_logger("pretrain")) as log:
        log.metrics({"loss": 4.0}, 25)
        log.metrics({"loss": 3.5}, 50)
    (events,) = tmp_path.rglob("events.out.*")
    found = EventAccumulator(str(events)).Reload().Scalars("loss")
    assert [(point.step, point.value) for point in found] == [(25, 4.0), (50, 3.5)]


def test_a_failing_writer_warns_once_and_stops_nothing(written: Points, caplog: pytest.LogCaptureFixture) -> None:
    with closing(run_logger("pretrain")) as log:
        for step in (25, 125, 150):
            log.metrics({"loss": 4.0}, step)
    assert written["pretrain/training"][0] == ("loss", 4.0, 25)
    assert caplog.text.count("the disk is full") == 1


def test_a_missing_extra_is_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setenv(TENSORBOARD, "events")
    monkeypatch.chdir(tmp_path)  # where no params.yaml would be found either
    error = CliRunner().invoke(app, ["stage", "pretrain", "out=x"]).exception
    assert isinstance(error, ClozelineError)
    assert "pip install 'clozeline[tensorboard]'" in error.do
    with pytest.raises(ClozelineError, match="TensorBoard is not installed"):
        run_logger("pretrain")
    monkeypatch.delenv(TENSORBOARD)
    run_logger("pretrain")


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


def test_without_a_run_in_the_environment_nothing_is_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN, raising=False)
    monkeypatch.setenv(OUTBOX, "nowhere")
    assert run_logger("pretrain") == RunLoggers()


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


def test_machine_metrics_are_sampled_at_intervals_with_rising_steps(
    monkeypatch: pytest.MonkeyPatch, opened: Outbox
) -> None:
    monkeypatch.setattr("clozeline.tracking.run_logger._MACHINE_SECONDS", 0.01)
    with closing(OutboxRunLogger(opened, "ours")):
        assert wait_for(lambda: len(opened.points("ours", 0, has_ended=False)[0]) > 2, 30)
    sampled = [points.step for points in opened.points("ours", 0, has_ended=True)[0]]
    assert sampled == sorted(set(sampled))


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
    log(opened, 2, 3, 4)
    assert steps(opened, address) == [1, 2, 3, 4]


def test_more_points_than_one_call_may_carry_all_arrive(opened: Outbox, address: str) -> None:
    for step in range(2500):
        opened.add_points("ours", {"loss": 1.0}, step)
    assert steps(opened, address) == list(range(2500))


def test_refused_points_do_not_delay_the_others(opened: Outbox, address: str, caplog: pytest.LogCaptureFixture) -> None:
    for key, step in {"what?": 1, "loss": 1, "why?": 2, "error": 2}.items():
        opened.add_points("ours", {key: 1.0}, step)
    delivery = Delivery(opened, address)
    assert (delivery.deliver(), delivery.num_lost) == ("done", 2)
    assert caplog.text.count("refused") == 2
    assert "why?" in delivery.refusal
    assert set(run_of(prepare(address), "ours").data.metrics) == {"loss", "error"}
