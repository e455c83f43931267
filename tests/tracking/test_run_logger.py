"""Points of curves are written for TensorBoard as well: training and validation as two runs, never stopping a stage."""

import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.system.errors import ClozelineError
from clozeline.tracking.outbox import OUTBOX
from clozeline.tracking.run_logger import TENSORBOARD, run_logger

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
