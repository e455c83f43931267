"""A side channel from a stage to its MLflow run, for its curves. It never changes an output, never raises, never waits.

The flow passes a run on through two environment variables, `CLOZELINE_OUTBOX` and `CLOZELINE_RUN`. Without them
(`dvc repro` alone) MLflow gets nothing. With `CLOZELINE_TENSORBOARD` the same points are written for TensorBoard.

System metrics of the machine come from MLflow's own monitors; its page shows them under "System metrics". MLflow's own
thread for them gives up after the first call that the server does not answer. Here they join the queue of all points,
which waits for the server.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from clozeline.system.errors import ClozelineError
from clozeline.tracking.outbox import OUTBOX, RUN, Outbox

_LOG = logging.getLogger(__name__)
# Environment variable with the folder of the events.
TENSORBOARD = "CLOZELINE_TENSORBOARD"
PREFIX = "system/"
_MACHINE_SECONDS = 10.0
_ON_HELD_OUT_TEXT = "validation_"


class RunLogger(Protocol):
    """Interface through which a stage logs to its run."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log metric values; steps at or below the last one logged before a resume are dropped."""

    def close(self) -> None:
        """Stop watching the machine."""


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
        yield OutboxRunLogger(Outbox(Path(folder)), run)


class OutboxRunLogger:
    """Appends points of the stage as they come, and figures of the machine from a thread of its own."""

    def __init__(self, outbox: Outbox, run: str) -> None:
        self._outbox = outbox
        self._run = run
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch_machine, name="machine-metrics", daemon=True)
        self._thread.start()

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        points = {}
        for key, value in values.items():
            try:
                points[key] = float(value)
            except (TypeError, ValueError, OverflowError):
                _LOG.warning("%s is not tracked: %r is no number", key, value)
        if points:
            self._outbox.add_points(self._run, points, step)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(10)

    def _watch_machine(self) -> None:
        try:
            from clozeline.tracking.mlflow import monitors

            machine = MachineMetrics(monitors())
        except Exception as error:  # noqa: BLE001  # MLflow's monitors may be missing, or a driver's library fail
            _LOG.debug("the machine is not watched: %s", error)
            return
        while True:
            # The steps are counted from the epoch, so that they keep rising after a resume.
            self.metrics(machine.values(), int(time.time() / _MACHINE_SECONDS))
            if self._closing.wait(_MACHINE_SECONDS):
                return


class MachineMetrics:
    """Load of CPU, memory, disk and network, and of GPUs if NVIDIA's management library (NVML) sees any.

    Metrics that are unavailable, such as the network in some containers, are left out.
    """

    def __init__(self, kinds: Iterable[Any]) -> None:
        """`kinds`: classes of MLflow's monitors."""
        self._monitors = []
        for kind in kinds:
            try:
                self._monitors.append(kind())
            except Exception as error:  # noqa: BLE001  # a driver's library may raise anything
                _LOG.debug("%s does not work here: %s", kind, error)

    def values(self) -> dict[str, float]:
        """Return the present values."""
        values: dict[str, float] = {}
        for monitor in self._monitors.copy():
            try:
                monitor.collect_metrics()
                values |= {PREFIX + key: float(value) for key, value in monitor.aggregate_metrics().items()}
                monitor.clear_metrics()
            except Exception as error:  # noqa: BLE001  # a driver's library may raise anything
                _LOG.debug("%s no longer works: %s", monitor, error)
                self._monitors.remove(monitor)
        return values


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
