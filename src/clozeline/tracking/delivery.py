"""Delivers the outbox to MLflow: in order, each message once, from a thread of its own that nothing waits for."""

import logging
import shutil
import threading
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, Literal, Protocol

from mlflow.exceptions import MlflowException

from clozeline.storage.locks import alone
from clozeline.tracking.machine import PREFIX
from clozeline.tracking.mlflow_messages import POINTS_PER_CALL, MlflowMessages, UnknownRunError
from clozeline.tracking.outbox import Curve, File, Message, Outbox, Point

_LOG = logging.getLogger(__name__)
_NEVER_TAKEN: Final = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE"}
_MOST_ATTEMPTS: Final = 5
"""Number of attempts to send a message that fails while the server answers."""
_LOOK_SECONDS: Final = 0.5
Progress = Literal["done", "again", "later", "no answer"]


class Receiver(Protocol):
    """Receiver of messages: MLflow, as `MlflowMessages`."""

    def answers(self) -> bool: ...
    def tell(self, message: Message) -> None: ...
    def tell_points(self, run: str, points: Sequence[Point]) -> None: ...


class Delivery:
    """Delivers one outbox. The keys of delivered messages are in `work/outbox/delivered`."""

    def __init__(self, outbox: Outbox, tracking_uri: str) -> None:
        self._outbox = outbox
        self._tracking_uri = tracking_uri
        self._delivered = outbox.folder / "delivered"
        self._receiver: Receiver | None = None
        self._waiting: deque[tuple[str, Message]] = deque()
        self._offset = 0
        self._failures: Counter[str] = Counter()
        self.num_lost = 0
        """Messages that MLflow refused, and lines that were cut; of curves, the points that belong to the stage."""

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def deliver(self) -> Progress:
        """Send the waiting messages. `later`: the server answers, but not everything could be stored. Never raises."""
        if not self._outbox.journal.exists():
            return "done"
        try:
            with self._alone():
                self._read()
                return self._send_all()
        except Exception as error:  # noqa: BLE001  # no fault of tracking may stop a run
            _LOG.debug("the outbox waits: %s", error)
            return "no answer"

    def clean_up(self) -> None:
        """Remove the outbox if nothing waits in it. The caller knows that no process adds to it."""
        if not self._outbox.journal.exists():
            return
        with self._alone():
            self._read()
            if self._waiting:
                return
            self._outbox.journal.unlink()  # first: without the journal, the rest is ignored
            self._delivered.unlink(missing_ok=True)
            shutil.rmtree(self._outbox.folder / "files", ignore_errors=True)
            self._offset = 0

    def _alone(self) -> AbstractContextManager[None]:
        """Exclude the thread of an earlier flow of this workspace that may still be sending."""
        return alone(self._outbox.folder / "delivery.lock")

    def _read(self) -> None:
        delivered = set()
        if self._offset == 0 and self._delivered.exists():
            delivered = set(self._delivered.read_text().split())
        new, self._offset, num_cut = self._outbox.read(self._offset)
        self.num_lost += num_cut
        self._waiting += [(key, message) for key, message in new if key not in delivered]

    def _send_all(self) -> Progress:
        if not self._waiting:
            return "done"
        if self._receiver is None:
            self._receiver = MlflowMessages(self._outbox, self._tracking_uri)
        put_aside: list[tuple[str, Message]] = []
        try:
            while self._waiting:
                batch = self._next_batch()
                progress = self._send(self._receiver, batch)
                if progress == "done":
                    self._take(batch)
                elif progress == "again":
                    continue
                elif progress == "later" and isinstance(batch[0][1], File):
                    put_aside.append(self._waiting.popleft())  # an unreachable store delays only files
                else:
                    return progress
        finally:
            self._waiting.extendleft(reversed(put_aside))
        return "later" if put_aside else "done"

    def _next_batch(self) -> list[tuple[str, Message]]:
        """Return the next message, or the next curves of one run as far as one call may carry them."""
        batch: list[tuple[str, Message]] = []
        num_points = 0
        for key, message in self._waiting:
            if batch and not (isinstance(message, Curve) and message.run == batch[0][1].run):
                break
            num_points += len(message.points) if isinstance(message, Curve) else 0
            if batch and (num_points > POINTS_PER_CALL or self._failures[batch[0][0]]):
                break
            batch.append((key, message))
            if not isinstance(message, Curve):
                break
        return batch

    def _send(self, receiver: Receiver, batch: Sequence[tuple[str, Message]]) -> Progress:
        key, first = batch[0]
        try:
            if isinstance(first, Curve):
                curves = [message for _, message in batch if isinstance(message, Curve)]
                receiver.tell_points(first.run, [point for curve in curves for point in curve.points])
            else:
                receiver.tell(first)
        except Exception as error:  # noqa: BLE001  # an artifact store raises the errors of its own package
            if not isinstance(error, UnknownRunError) and not receiver.answers():
                return "no answer"
            self._failures[key] += 1
            if len(batch) > 1:
                return "again"  # retry one by one: only the bad point is lost
            if not _is_final(error) and (isinstance(first, File) or self._failures[key] < _MOST_ATTEMPTS):
                return "later"
            self.num_lost += _num_values(first)
            _LOG.warning("MLflow refused a part of this run: %s", " ".join(str(error).split())[:300])
        return "done"

    def _take(self, batch: Sequence[tuple[str, Message]]) -> None:
        with self._delivered.open("a") as file:
            file.writelines(f"{key}\n" for key, _ in batch)
        for _ in batch:
            self._waiting.popleft()


class DeliveryThread:
    """Delivers twice a second until it is closed; every `retry_seconds` while the server does not answer."""

    def __init__(self, delivery: Delivery, *, retry_seconds: float = 5.0, close_seconds: float = 20.0) -> None:
        self._delivery = delivery
        self._retry_seconds = retry_seconds
        self._close_seconds = close_seconds
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mlflow-delivery", daemon=True)
        self._thread.start()

    def close(self) -> bool:
        """Wait at most `close_seconds` for the rest; return whether MLflow has everything."""
        self._closing.set()
        self._thread.join(self._close_seconds)
        self._ended.set()
        return not self._thread.is_alive() and self._delivery.num_waiting == 0

    def _run(self) -> None:
        pause_seconds = _LOOK_SECONDS
        while not self._closing.wait(pause_seconds):
            pause_seconds = _LOOK_SECONDS if self._delivery.deliver() == "done" else self._retry_seconds
        num_later = 0
        while (progress := self._delivery.deliver()) != "done":
            num_later += progress == "later"
            if num_later > _MOST_ATTEMPTS or self._ended.wait(min(self._retry_seconds, 1.0)):
                return


def _is_final(error: Exception) -> bool:
    """Whether MLflow would refuse the same call again."""
    return isinstance(error, UnknownRunError) or (
        isinstance(error, MlflowException) and error.error_code in _NEVER_TAKEN
    )


def _num_values(message: Message) -> int:
    """Return the number of lost messages; of a curve, the points that belong to the stage, not to the machine."""
    if not isinstance(message, Curve):
        return 1
    return sum(not point.key.startswith(PREFIX) for point in message.points)
