"""A side channel from a stage to its MLflow run, for its curves. It never changes an output, never raises, never waits.

The flow passes a run on through two environment variables, `CLOZELINE_OUTBOX` and `CLOZELINE_RUN`. Without them
(`dvc repro` alone) MLflow gets nothing. With `CLOZELINE_TENSORBOARD` the same points are written for TensorBoard.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from clozeline.system.errors import ClozelineError
from clozeline.tracking.outbox import OUTBOX, RUN, Outbox

_LOG = logging.getLogger(__name__)
TENSORBOARD: Final = "CLOZELINE_TENSORBOARD"
"""Environment variable with the folder of the events."""
_ON_HELD_OUT_TEXT: Final = "validation_"


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


def require_tensorboard() -> None:
    """Check that events can be written, if the environment asks for them.

    Raises:
        ClozelineError: TensorBoard is not installed.
    """
    folder = os.environ.get(TENSORBOARD)
    if folder and find_spec("tensorboard") is None:
        raise ClozelineError(
            f"TensorBoard is not installed, but {TENSORBOARD}={folder} asks for its events",
            do=f"run `pip install 'clozeline[tensorboard]'`, or `unset {TENSORBOARD}`",
        )


class TensorBoardRunLogger:
    """Writes one training as two runs, `training` and `validation`: TensorBoard draws both on one chart."""

    def __init__(self, folder: Path, name: str) -> None:
        """`folder` gets a folder named by `name` and the time, so that no training continues another one's events."""
        require_tensorboard()
        self._folder = folder / f"{name} {datetime.now():%Y-%m-%d %H.%M.%S}"
        self._writers: dict[str, Any] = {}
        self._has_failed = False

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        try:
            for key, value in values.items() if not self._has_failed else ():
                part = "validation" if _ON_HELD_OUT_TEXT in key else "training"
                self._writer(part).add_scalar(key.replace(_ON_HELD_OUT_TEXT, ""), value, step)
        except Exception as error:  # noqa: BLE001  # its thread raises any error later; none may stop a training
            self._has_failed = True
            _LOG.warning("TensorBoard gets no more points of this training: %s", error)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _writer(self, part: str) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        if part not in self._writers:
            self._writers[part] = SummaryWriter(str(self._folder / part))
        return self._writers[part]
