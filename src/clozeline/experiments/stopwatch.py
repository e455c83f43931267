"""Seconds that a training takes, also of one that was killed and continues from a checkpoint."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from clozeline.artifacts.record import Record
from clozeline.storage.atomic import replacing_file
from clozeline.training.callbacks import Callback
from clozeline.training.curves import CurvePoint
from clozeline.training.state import State


class Seconds(NamedTuple):
    """Time of a training, from its first step to its last, with its validation passes."""

    wall: float
    cpu: float
    """Processor time of all threads of the training process."""

    @classmethod
    def now(cls) -> Self:
        return cls(time.monotonic(), time.process_time())


class _Spent(Record):
    """Seconds from the start of the training to each of some steps."""

    at_step: Mapping[int, Seconds] = {}


class Stopwatch(Callback):
    """Keeps the seconds of each point of the curve in a file, so that a resumed training adds to those it had."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._spent = _Spent.model_validate_json(file.read_bytes()) if file.is_file() else _Spent()
        self._before = Seconds(0.0, 0.0)
        self._started = Seconds.now()

    @property
    def total(self) -> Seconds:
        """Seconds up to the last point."""
        return self._spent.at_step[max(self._spent.at_step)] if self._spent.at_step else Seconds(0.0, 0.0)

    def on_start(self, state: State) -> None:
        """Drop what the killed process did after its last checkpoint, which is done again."""
        kept = {step: spent for step, spent in self._spent.at_step.items() if step <= state.step}
        self._spent = _Spent(at_step=kept)
        self._before = self.total
        self._started = Seconds.now()

    def on_point(self, point: CurvePoint) -> None:
        self._note(point.step)

    def on_end(self, state: State) -> None:
        """Count the validation pass after the last point too."""
        self._note(state.step)

    def _note(self, step: int) -> None:
        marks = zip(self._before, Seconds.now(), self._started, strict=True)
        spent = Seconds(*(before + now - started for before, now, started in marks))
        self._spent = _Spent(at_step={**self._spent.at_step, step: spent})
        with replacing_file(self._file) as beside:
            beside.write_text(self._spent.model_dump_json() + "\n", encoding="utf-8")
