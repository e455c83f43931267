"""How busy the machine is: MLflow's own monitors, whose points its page shows under "System metrics".

MLflow's thread for them gives up at the first call that a server does not answer; here they go where all points go,
which wait until it does.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

_EVERY_SECONDS: Final = 10.0
PREFIX: Final = "system/"
_KINDS: Final[tuple[Any, ...]] = (CPUMonitor, DiskMonitor, NetworkMonitor)
_GPU: Final[Any] = GPUMonitor


class MachineMetrics:
    """CPU, memory, disk, network, and GPUs where NVIDIA's management library sees any."""

    def __init__(self, every_seconds: float = _EVERY_SECONDS) -> None:
        self._every_seconds = every_seconds
        self._next = time.monotonic()
        self._monitors = [kind() for kind in _KINDS] + _gpu_monitors()

    def due(self) -> tuple[Mapping[str, float], int] | None:
        """Values and their step, every so many seconds; None in between.

        The step counts from the epoch in units of `every_seconds`, so that it rises over resumes too.
        """
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + self._every_seconds
        values: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            values |= {PREFIX + key: float(value) for key, value in monitor.aggregate_metrics().items()}
            monitor.clear_metrics()
        return values, int(time.time() / self._every_seconds)


def _gpu_monitors() -> list[Any]:
    try:
        return [_GPU()]
    except (ImportError, RuntimeError):  # the library is not installed, or sees no GPU
        return []
