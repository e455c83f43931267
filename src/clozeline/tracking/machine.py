"""How busy the machine is: MLflow's own monitors, whose points its page shows under "System metrics".

MLflow's thread for them gives up at the first call that a server does not answer; here they go where all points go,
which wait until it does.
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
    """CPU, memory, disk, network, and GPUs where NVIDIA's management library sees any.

    What cannot be seen here, such as the network of some containers, is left out.
    """

    def __init__(self, every_seconds: float = _EVERY_SECONDS, kinds: Sequence[Any] | None = None) -> None:
        """`kinds`: of monitors; None: MLflow's."""
        self._every_seconds = every_seconds
        self._next = time.monotonic()
        self._monitors = []
        for kind in monitors() if kinds is None else kinds:
            try:
                self._monitors.append(kind())
            except Exception as error:  # noqa: BLE001  # a driver's library may raise anything
                _LOG.debug("%s sees nothing here: %s", kind, error)

    def due(self) -> tuple[Mapping[str, float], int] | None:
        """Values and their step, every so many seconds; None in between.

        The step counts from the epoch in units of `every_seconds`, so that it rises over resumes too.
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
            except Exception as error:  # noqa: BLE001  # as above
                _LOG.debug("%s sees nothing any more: %s", monitor, error)
                self._monitors.remove(monitor)
        return values, int(time.time() / self._every_seconds)
