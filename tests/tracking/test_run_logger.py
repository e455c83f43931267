"""Curves reach MLflow without duplicate points after a resume, and TensorBoard as two runs; they never stop a stage."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.system.errors import ClozelineError
from clozeline.tracking.delivery import WORKSPACE, Delivery
from clozeline.tracking.mlflow import prepare
from clozeline.tracking.outbox import OUTBOX, RUN, Outbox, TrackedRun
from clozeline.tracking.run_logger import TENSORBOARD, OutboxRunLogger, RunLoggers, run_logger
from tests.make.processes import wait_for
from tests.make.stores import delivered, run_of

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


def test_machine_metrics_are_sampled_at_intervals_with_rising_steps(
    monkeypatch: pytest.MonkeyPatch, outbox: Outbox
) -> None:
    monkeypatch.setattr("clozeline.tracking.run_logger._MACHINE_SECONDS", 0.01)
    logger = OutboxRunLogger(outbox, "ours")
    assert wait_for(lambda: len(outbox.points("ours", 0, has_ended=False)[0]) > 2, 30)
    logger.close()
    sampled = [points.step for points in outbox.points("ours", 0, has_ended=True)[0]]
    assert sampled == sorted(set(sampled))


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
