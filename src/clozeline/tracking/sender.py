"""The run logger that sends to MLflow from a thread of its own, so that a slow server never delays training."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from clozeline.tracking.machine import PREFIX, MachineMetrics

_LOG = logging.getLogger(__name__)
_NEVER_TAKEN: Final = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "PERMISSION_DENIED"}
_POINTS_PER_CALL: Final = 1000  # MLflow refuses a batch of more
_POINTS_KEPT: Final = 100_000  # while the server does not answer; further points are counted as lost


class MlflowRunLogger:
    """Sends points to run `run_id` twice a second; retries every `retry_seconds` while the server does not answer.

    A resumed stage repeats the steps after its last checkpoint, and MLflow would store their points twice. Therefore
    only points after the last step in the run are sent.
    """

    def __init__(
        self, tracking_uri: str, run_id: str, *, retry_seconds: float = 5.0, close_seconds: float = 20.0
    ) -> None:
        self._client = MlflowClient(tracking_uri)
        self._run_id = run_id
        self._retry_seconds = retry_seconds
        self._close_seconds = close_seconds
        self._points: deque[Metric] = deque()
        self._last_steps: dict[str, int] = {}  # last step of each curve before this process
        self._num_lost = 0
        self._machine = MachineMetrics()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send_until_closed, name="mlflow-sender", daemon=True)
        self._thread.start()

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        now_ms = int(time.time() * 1000)
        for key, value in values.items():
            number = _number(value)
            if number is None or len(self._points) >= _POINTS_KEPT:
                self._num_lost += 1
            else:
                self._points.append(Metric(key, number, now_ms, step))

    def close(self) -> None:
        self._closing.set()
        self._thread.join(self._close_seconds)
        num_lost = self._num_lost + _num_told(self._points.copy())  # a copy, because the thread may still send
        if num_lost:
            _LOG.warning("%d metric values of this run are missing in MLflow", num_lost)

    def _send_until_closed(self) -> None:
        pause_seconds = 0.5
        while not self._closing.wait(pause_seconds):
            self._watch_machine()
            pause_seconds = 0.5 if self._send() else self._retry_seconds
        self._watch_machine()
        self._send()

    def _watch_machine(self) -> None:
        sample = self._machine.due()
        if sample is not None:
            values, step = sample
            self.metrics(values, step)

    def _send(self) -> bool:
        """Send the waiting points; False if the server did not answer, and the rest stays in the queue."""
        while self._points:
            # Indices instead of iteration, because the training thread appends meanwhile.
            batch = [self._points[i] for i in range(min(len(self._points), _POINTS_PER_CALL))]
            if not self._taken(batch):
                return False
            for _ in batch:
                self._points.popleft()
        return True

    def _taken(self, points: list[Metric]) -> bool:
        """Send `points`; True if they were stored or finally refused, False if they have to be sent again."""
        try:
            self._send_points(points)
        except Exception as error:  # noqa: BLE001  # an error that ends this thread would end all curves
            if not _is_final(error):
                return False
            self._num_lost += _num_told(points)
            _LOG.warning("MLflow refused metric values of this run: %s", error)
        return True

    def _send_points(self, points: list[Metric]) -> None:
        for key in {point.key for point in points} - set(self._last_steps):
            history = self._client.get_metric_history(self._run_id, key)
            self._last_steps[key] = max((point.step for point in history), default=-1)
        new = [point for point in points if point.step > self._last_steps[point.key]]
        if new:
            self._client.log_batch(self._run_id, metrics=new)


def _number(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def _num_told(points: Iterable[Metric]) -> int:
    """Return the number of points that belong to the stage, not to the machine."""
    return sum(not point.key.startswith(PREFIX) for point in points)


def _is_final(error: Exception) -> bool:
    """Whether MLflow would refuse the same call again."""
    return isinstance(error, MlflowException) and error.error_code in _NEVER_TAKEN
