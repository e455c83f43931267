"""The trials of a sweep as files: several processes share them, and a killed one leaves nothing half-done."""

import fcntl
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from clozeline.artifacts.record import Record
from clozeline.experiments.plan import Value
from clozeline.storage.atomic import replacing_file
from clozeline.storage.locks import alone

State = Literal["running", "finished", "pruned", "failed"]


class TrialRecord(Record):
    """One trial: the values that it tries, and what came of them."""

    number: int
    values: Mapping[str, Value]
    state: State = "running"
    looks: Mapping[int, float] = {}
    """Step of a validation pass → figure."""
    value: float | None = None
    """The metric; None: not finished."""
    experiment: str = ""
    """Name of the folder with its training."""
    reason: str = ""
    """Why it failed."""

    @property
    def figure(self) -> float | None:
        """The metric, if the trial has finished with a finite one."""
        is_known = self.state == "finished" and self.value is not None and math.isfinite(self.value)
        return self.value if is_known else None

    def changed(self, **fields: object) -> "TrialRecord":
        return self.model_copy(update=fields)


Propose = Callable[[Sequence[TrialRecord], int], Mapping[str, Value]]
"""Return the values of trial `number`, given the trials so far."""


@dataclass(frozen=True)
class Trials:
    """The trials in one folder."""

    folder: Path

    def read(self) -> list[TrialRecord]:
        files = sorted(self.folder.glob("[0-9]*.json"))
        return [TrialRecord.model_validate_json(file.read_bytes()) for file in files]

    def at(self, number: int) -> TrialRecord:
        return TrialRecord.model_validate_json(self._file(number).read_bytes())

    def write(self, trial: TrialRecord) -> None:
        with replacing_file(self._file(trial.number)) as beside:
            beside.write_text(trial.model_dump_json() + "\n", encoding="utf-8")

    @contextmanager
    def claimed(self, num_trials: int, propose: Propose) -> Iterator[TrialRecord | None]:
        """Yield a trial for this process alone: one that a dead process left, or the next; None: there is none left.

        The kernel releases the claim when the process ends, however it ends.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            trial, claim = self._orphan()
            number = len(self.read())
            if trial is None and number < num_trials:
                claim = self._claim(number)
                trial = TrialRecord(number=number, values=propose(self.read(), number))
                self.write(trial)
        try:
            yield trial
        finally:
            if claim is not None:
                claim.close()

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:04}.json"

    def _alone(self) -> AbstractContextManager[None]:
        return alone(self.folder / "lock")

    def _orphan(self) -> tuple[TrialRecord | None, IO[str] | None]:
        for trial in self.read():
            if trial.state == "running" and (claim := self._claim(trial.number)) is not None:
                return trial, claim
        return None, None

    def _claim(self, number: int) -> IO[str] | None:
        file = (self.folder / f"{number:04}.lock").open("w", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file
