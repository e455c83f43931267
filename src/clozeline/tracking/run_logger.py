"""A side channel from a stage to its MLflow run, for its curves. It never changes an output, never raises, never waits.

The flow passes a run on through two environment variables, `CLOZELINE_OUTBOX` and `CLOZELINE_RUN`. Without them
(`dvc repro` alone) MLflow gets nothing. With `CLOZELINE_TENSORBOARD` the same points are written for TensorBoard.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from clozeline.tracking.outbox import OUTBOX, RUN, Outbox
from clozeline.tracking.tensorboard import TENSORBOARD, TensorBoardRunLogger


class RunLogger(Protocol):
    """Interface through which a stage logs to its run."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log metric values; steps at or below the last one logged before a resume are dropped."""

    def close(self) -> None:
        """Log the last figures of the machine."""


@dataclass(frozen=True)
class RunLoggers:
    """Several loggers as one; without any, it tracks nothing."""

    each: tuple[RunLogger, ...] = ()

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        for logger in self.each:
            logger.metrics(values, step)

    def close(self) -> None:
        for logger in self.each:
            logger.close()


def run_logger(name: str) -> RunLogger:
    """Return a logger of the training `name` for the run and for the TensorBoard folder that the environment names.

    Raises:
        ClozelineError: a TensorBoard folder is named, and TensorBoard is not installed.
    """
    return RunLoggers(tuple(_loggers(name)))


def _loggers(name: str) -> Iterator[RunLogger]:
    if events := os.environ.get(TENSORBOARD):
        yield TensorBoardRunLogger(Path(events), name)
    folder, run = os.environ.get(OUTBOX), os.environ.get(RUN)
    if folder and run:
        from clozeline.tracking.stage_log import OutboxRunLogger

        yield OutboxRunLogger(Outbox(Path(folder)), run)
