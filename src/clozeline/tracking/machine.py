"""System metrics of the machine, from MLflow's own monitors; its page shows them under "System metrics".

MLflow's own thread for them gives up after the first call that the server does not answer. Here they join the queue of
all points, which waits for the server.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clozeline.tracking.mlflow_adapter import monitors

_LOG = logging.getLogger(__name__)
_EVERY_SECONDS: Final = 10.0
PREFIX: Final = "system/"


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
