"""The run logger that talks to MLflow: from a thread of its own, so that a slow server never holds training up."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import SQLAlchemyError

from clozeline.tracking.machine import PREFIX, MachineMetrics

_LOG = logging.getLogger(__name__)
SERVER_FAULTS: Final = (MlflowException, OSError, SQLAlchemyError)
_NEVER_TAKEN: Final = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "PERMISSION_DENIED"}
_POINTS_PER_CALL: Final = 1000  # MLflow refuses a batch of more
_POINTS_KEPT: Final = 100_000  # while the server is away; more are counted as lost
_PARAMS_PER_CALL: Final = 100
_PARAM_CHARACTERS: Final = 6000  # MLflow cuts a value there


class MlflowRunLogger:
    """Sends to run `run_id` twice a second; a server that does not answer is tried again every `retry_seconds`.

    A resumed stage repeats the steps after its last checkpoint. Their points are in the run already,
    and MLflow would store them twice: a curve goes on after the last step that the run has.
    """

    def __init__(
        self, tracking_uri: str, run_id: str, *, retry_seconds: float = 5.0, close_seconds: float = 20.0
    ) -> None:
        self._client = MlflowClient(tracking_uri)
        self._run_id = run_id
        self._retry_seconds = retry_seconds
        self._close_seconds = close_seconds
        self._points: deque[Metric] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._last_steps: dict[str, int] = {}  # of the run, before this process
        self._num_lost = 0
        self._machine = MachineMetrics()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send_until_closed, name="mlflow-sender", daemon=True)
        self._thread.start()

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        now_ms = int(time.time() * 1000)
        for key, value in values.items():
            if len(self._points) < _POINTS_KEPT:
                self._points.append(Metric(key, float(value), now_ms, step))
            else:
                self._num_lost += 1

    def params(self, values: Mapping[str, object]) -> None:
        texts = {key: str(value)[:_PARAM_CHARACTERS] for key, value in values.items()}
        self._calls.append(lambda: add_params(self._client, self._run_id, texts))

    def file(self, path: Path, folder: str) -> None:
        self._calls.append(lambda: self._client.log_artifact(self._run_id, str(path), folder))

    def close(self) -> None:
        self._closing.set()
        self._thread.join(self._close_seconds)
        said = [point for point in self._points if not point.key.startswith(PREFIX)]  # by the stage, not of the machine
        num_lost = self._num_lost + len(said) + len(self._calls)
        if num_lost:
            _LOG.warning("MLflow did not answer: %d points, params or files are missing from its run", num_lost)

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
        """Send all that waits; False if the server did not answer, and then the rest still waits."""
        while self._calls:
            if not self._taken(self._calls[0]):
                return False
            self._calls.popleft()
        while self._points:
            # Not an iteration: the training thread appends meanwhile.
            batch = [self._points[i] for i in range(min(len(self._points), _POINTS_PER_CALL))]
            if not self._taken(partial(self._send_points, batch)):
                return False
            for _ in batch:
                self._points.popleft()
        return True

    def _taken(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except SERVER_FAULTS as error:
            if not _is_final(error):
                return False
            self._num_lost += 1
            _LOG.warning("MLflow refused a part of what this run said: %s", error)
        return True

    def _send_points(self, points: list[Metric]) -> None:
        for key in {point.key for point in points} - set(self._last_steps):
            history = self._client.get_metric_history(self._run_id, key)
            self._last_steps[key] = max((point.step for point in history), default=-1)
        new = [point for point in points if point.step > self._last_steps[point.key]]
        if new:
            self._client.log_batch(self._run_id, metrics=new)


def add_params(client: MlflowClient, run_id: str, texts: Mapping[str, str]) -> None:
    """Add the params that the run has not; MLflow fails a whole run over one that it has with another value."""
    known = client.get_run(run_id).data.params
    new = [Param(key, text) for key, text in texts.items() if key not in known]
    for start in range(0, len(new), _PARAMS_PER_CALL):
        client.log_batch(run_id, params=new[start : start + _PARAMS_PER_CALL])


def _is_final(error: Exception) -> bool:
    """Whether the same call would be refused again."""
    if isinstance(error, MlflowException):
        return error.error_code in _NEVER_TAKEN
    return isinstance(error, FileNotFoundError)
