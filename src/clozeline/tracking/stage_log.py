"""The run logger of a stage process: it appends to the outbox, which the flow delivers."""

import logging
import threading
from collections.abc import Mapping
from typing import Final

from clozeline.tracking.machine import MachineMetrics
from clozeline.tracking.outbox import Outbox

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 0.5


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
