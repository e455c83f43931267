"""The run logger of a stage process: it appends to the outbox, which the flow delivers.

System metrics of the machine come from MLflow's own monitors; its page shows them under "System metrics". MLflow's own
thread for them gives up after the first call that the server does not answer. Here they join the queue of all points,
which waits for the server.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clozeline.tracking.mlflow import monitors
from clozeline.tracking.outbox import Outbox

_LOG = logging.getLogger(__name__)
_EVERY_SECONDS: Final = 10.0
PREFIX: Final = "system/"

_LOOK_SECONDS: Final = 0.5


class MachineMetrics:
    """Load of CPU, memory, disk and network, and of GPUs if NVIDIA's management library (NVML) sees any.

    Metrics that are unavailable, such as the network in some containers, are left out.
    """

    def __init__(self, every_seconds: float = _EVERY_SECONDS, kinds: Sequence[Any] | None = None) -> None:
        """`kinds`: classes of monitors; None: those of MLflow."""
        self._every_seconds = every_seconds
        self._next = time.monotonic()
        self._monitors = []
        for kind in monitors() if kinds is None else kinds:
            try:
                self._monitors.append(kind())
            except Exception as error:  # noqa: BLE001  # a driver's library may raise anything
                _LOG.debug("%s does not work here: %s", kind, error)

    def due(self) -> tuple[Mapping[str, float], int] | None:
        """Return values and their step if `every_seconds` have passed since the last call that did; None otherwise.

        The step is the time since the epoch in units of `every_seconds`, so that it keeps rising after a resume.
        """
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + self._every_seconds
        values: dict[str, float] = {}
        for monitor in self._monitors.copy():
            try:
                monitor.collect_metrics()
                values |= {PREFIX + key: float(value) for key, value in monitor.aggregate_metrics().items()}
                monitor.clear_metrics()
            except Exception as error:  # noqa: BLE001  # a driver's library may raise anything
                _LOG.debug("%s no longer works: %s", monitor, error)
                self._monitors.remove(monitor)
        return values, int(time.time() / self._every_seconds)


class OutboxRunLogger:
    """Appends points of the stage as they come, and figures of the machine from a thread of its own."""

    def __init__(self, outbox: Outbox, run: str) -> None:
        self._outbox = outbox
        self._run = run
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch_machine, name="machine-metrics", daemon=True)
        self._thread.start()

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        numbers = {key: _number(value) for key, value in values.items()}
        for key in [key for key, number in numbers.items() if number is None]:
            _LOG.warning("%s is not tracked: %r is no number", key, values[key])
        points = {key: number for key, number in numbers.items() if number is not None}
        if points:
            self._outbox.add_points(self._run, points, step)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(10)

    def _watch_machine(self) -> None:
        try:
            machine = MachineMetrics()
        except Exception as error:  # noqa: BLE001  # MLflow's monitors may be missing, or a driver's library fail
            _LOG.debug("the machine is not watched: %s", error)
            return
        while True:
            if sample := machine.due():
                self.metrics(*sample)
            if self._closing.wait(_LOOK_SECONDS):
                return


def _number(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]  # the call is the check
    except (TypeError, ValueError, OverflowError):
        return None
