"""The trials of a sweep in MLflow: a run for each, under that of the sweep.

All records go through an outbox of the sweep's own, so no trial waits for MLflow, and no other run is disturbed.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clozeline.experiments.trials import TrialRecord
from clozeline.tracking.mlflow_messages import WORKSPACE
from clozeline.tracking.outbox import OUTBOX, RUN, Outbox, Status, TrackedRun, now_ms

_STATUS: Final[Mapping[str, Status]] = {"finished": "FINISHED", "pruned": "KILLED", "failed": "FAILED"}


@dataclass(frozen=True)
class TrialLog:
    """Opens and closes the run of each trial."""

    outbox: Outbox
    parent: str
    """Name of the sweep's run within the outbox."""
    workspace: str
    metric: str

    @contextmanager
    def __call__(self, trial: TrialRecord) -> Iterator[Callable[[TrialRecord], None]]:
        """Open the run of a trial; the curves of its training go there too. An unfinished one is continued."""
        run = f"{self.parent}-{trial.number}"
        record = TrackedRun(
            name=f"trial {trial.number + 1}",
            tags={WORKSPACE: self.workspace},
            started_ms=now_ms(),
            parent=self.parent,
            fingerprint=f"{self.workspace}-{trial.number}",
            params={key: str(value) for key, value in trial.values.items()},
        )
        self.outbox.open(run, record)
        with _in_environment({OUTBOX: str(self.outbox.folder.resolve()), RUN: run}):
            yield lambda ended: self._end(run, ended)

    def _end(self, run: str, trial: TrialRecord) -> None:
        figures = {} if trial.value is None else {self.metric: trial.value}
        tags = {"trial.state": trial.state, "trial.experiment": trial.experiment, "error": trial.reason}
        told = {key: value for key, value in tags.items() if value}
        self.outbox.end(run, _STATUS[trial.state], tags=told, figures=figures)


def outbox_in(folder: Path) -> Outbox:
    return Outbox(folder / "outbox")


@contextmanager
def _in_environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
