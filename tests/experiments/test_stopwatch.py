"""Claim: the seconds of a killed training count what its checkpoint kept, once."""

import time
from pathlib import Path

import pytest

from clozeline.lab.experiment import Stopwatch
from clozeline.training.curves import CurvePoint
from clozeline.training.state import State


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clocks that advance by 10 and by 4 seconds each time they are read."""
    for name, step in (("monotonic", 10.0), ("process_time", 4.0)):
        ticks = iter(range(1000))
        monkeypatch.setattr(time, name, lambda ticks=ticks, step=step: step * next(ticks))


def point(step: int) -> CurvePoint:
    return CurvePoint(step, 1.0, 1e-3, 1.0, 100)


@pytest.mark.usefixtures("later")
def test_a_resumed_training_adds_to_the_seconds_up_to_its_checkpoint(tmp_path: Path) -> None:
    killed = Stopwatch(tmp_path / "seconds.json")
    killed.on_start(State())
    for step in (10, 20, 30):
        killed.on_point(point(step))
    assert killed.total == (30, 12)
    resumed = Stopwatch(tmp_path / "seconds.json")
    resumed.on_start(State(step=20))
    assert resumed.total == (20, 8)
    resumed.on_point(point(30))
    resumed.on_end(State(step=30))
    assert resumed.total == (40, 16)
    assert Stopwatch(tmp_path / "seconds.json").total == (40, 16)
