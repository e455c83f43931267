"""A side channel from a stage to its MLflow run, for its curves. It never changes an output, never raises, never waits.

The flow passes a run on through two environment variables, `CLOZELINE_OUTBOX` and `CLOZELINE_RUN`. Without them
(`dvc repro` alone) the logger does nothing.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from clozeline.tracking.outbox import OUTBOX, RUN, Outbox


class RunLogger(Protocol):
    """Interface through which a stage logs to its run."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log metric values; steps at or below the last one logged before a resume are dropped."""

    def close(self) -> None:
        """Log the last figures of the machine."""


class NullRunLogger:
    """A logger that tracks nothing."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        pass

    def close(self) -> None:
        pass


def run_logger() -> RunLogger:
    """Return a logger for the run that the environment names; without one, a logger that tracks nothing."""
    folder, run = os.environ.get(OUTBOX), os.environ.get(RUN)
    if not folder or not run:
        return NullRunLogger()
    from clozeline.tracking.stage_log import OutboxRunLogger

    return OutboxRunLogger(Outbox(Path(folder)), run)
