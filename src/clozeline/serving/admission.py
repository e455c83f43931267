"""Admission: which requests may wait. A request is queued or refused as a whole, and an admitted one is in time.

An admitted request is answered in bounded time: once its turn has come, no other request passes it, and the work ahead
of it is at most what admission allows.

A bulk request needs more than half of the tokens or seconds that may wait. Its texts become due one after another, most
of the time until its deadline; only due texts count, so bulk requests do not keep others out. All bulk requests
together are granted at most one second of work per second, so they do not increase the due work. It hardly ever exceeds
`max_waiting_tokens`, and the last text of a bulk request is answered little more than `max_wait_seconds` after its
turn.
"""

import math
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

from clozeline.serving.queue import Runnable
from clozeline.system.errors import PortableError

MAX_WAITING_TOKENS = 65_536
MAX_WAIT_SECONDS = 10.0
# Factor on older measurements with each new micro-batch: about the last 20 count.
_KEPT = 0.95
_BULK = 0.5
# Upper bound of running time / seconds of due work: up to a tenth is padding, and some later texts run in the same
# batches.
_MAX_DELAY = 1.25
_MAX_SPREAD_SECONDS = 600.0
Reason = Literal["crowded", "queue_full", "queue_slow", "tokenizer_full", "never_in_time"]


class OverloadedError(PortableError):
    """A request was not admitted; none of its texts runs."""

    def __init__(self, reason: Reason, *, given: str, expected: str, retry_seconds: float | None) -> None:
        """`retry_seconds`: time after which a retry makes sense; None: even an idle server would refuse it."""
        super().__init__(reason, given)
        self.reason = reason
        self.given = given
        self.expected = expected
        self.retry_after_seconds = None if retry_seconds is None else max(1, math.ceil(retry_seconds))


class Pace:
    """Seconds per token of `num_workers` workers together."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def is_measured(self) -> bool:
        return self._tokens > 0

    def note(self, tokens: int, seconds: float) -> None:
        """Record that a worker ran `tokens`, including padding, in `seconds`."""
        self._tokens = _KEPT * self._tokens + tokens
        self._seconds = _KEPT * self._seconds + seconds

    def seconds_for(self, tokens: float) -> float:
        """Return the seconds that all workers together take for `tokens`; 0 before the first measurement."""
        return tokens * self._seconds / self._tokens / self._num_workers if self._tokens else 0.0


class Paces:
    """The pace of each model. Models of one server can differ by a factor of 100."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._of: WeakKeyDictionary[Runnable, Pace] = WeakKeyDictionary()  # keeps no reference to a replaced model
        self.of_all = Pace(num_workers)

    def note(self, model: Runnable, tokens: int, seconds: float) -> None:
        self.of(model).note(tokens, seconds)
        self.of_all.note(tokens, seconds)

    def of(self, model: Runnable) -> Pace:
        return self._of.setdefault(model, Pace(self._num_workers))

    def known_of(self, model: Runnable) -> Pace:
        """Return the pace of `model`; the pace of all models if it has not run yet."""
        pace = self.of(model)
        return pace if pace.is_measured else self.of_all


@dataclass(frozen=True, slots=True)
class Asks:
    """Work of one request."""

    tokens: int
    patience_seconds: float = math.inf  # seconds until its deadline


@dataclass(frozen=True, slots=True)
class Waiting:
    """Work that waits when a request arrives."""

    seconds: float = 0.0  # seconds of all waiting work, at the pace of each model
    due_seconds: float = 0.0  # seconds of the work that is due: it excludes bulk texts whose turn has not come
    due_tokens: int = 0  # tokens of the work that is due
    promised: float = 0.0  # share of each second that is promised to bulk requests


@dataclass(frozen=True, slots=True)
class Admission:
    """The limits of the work that waits. Each `check` raises OverloadedError if a request may not wait.

    `pace` is that of its model. `full_pace` is that of full micro-batches, a lower bound: small requests take longer
    per token, and may be tried.
    """

    # Maximum number of tokens that may be due, and so ahead of any request.
    max_waiting_tokens: int = MAX_WAITING_TOKENS
    max_wait_seconds: float = MAX_WAIT_SECONDS  # maximum seconds of work that may be due, at the measured pace

    def spread_seconds(self, asks: Asks, full_pace: Pace, batch_tokens: int) -> float:
        """Return the seconds over which the turns of a bulk request are spread; 0 for any other request.

        A request that fits one micro-batch is never bulk. The last turn leaves time for the work that may be due by
        then; a request with less than twice that time spreads its turns over half of its time.
        """
        share = max(asks.tokens / self.max_waiting_tokens, full_pace.seconds_for(asks.tokens) / self.max_wait_seconds)
        if share <= _BULK or asks.tokens <= batch_tokens:
            return 0.0
        patience_seconds = min(max(0.0, asks.patience_seconds), _MAX_SPREAD_SECONDS)
        return max(patience_seconds - _MAX_DELAY * self.max_wait_seconds, patience_seconds / 2)

    def check(self, waiting: Waiting, asks: Asks, pace: Pace) -> None:
        """Check a request that is not bulk. If nothing is due, it may wait."""
        if not waiting.due_tokens:
            return
        together = waiting.due_tokens + asks.tokens
        if together > self.max_waiting_tokens:
            raise OverloadedError(
                "queue_full",
                given=f"{together:,} waiting tokens with this request",
                expected=f"at most {self.max_waiting_tokens:,} waiting tokens",
                retry_seconds=pace.seconds_for(together - self.max_waiting_tokens),
            )
        seconds = waiting.due_seconds + pace.seconds_for(asks.tokens)
        _check_slow(seconds, min(self.max_wait_seconds, asks.patience_seconds), "with this request")


def check_bulk(waiting: Waiting, asks: Asks, spread_seconds: float, full_pace: Pace) -> None:
    """Check a bulk request.

    An admitted request is in time if no more work is due at its last turn than now, or if its turns leave time for the
    maximum.
    """
    seconds = full_pace.seconds_for(asks.tokens)
    if waiting.promised + seconds / spread_seconds > 1:
        raise OverloadedError(
            "queue_slow",
            given=f"{seconds:.1f} s of work, besides other large requests",
            expected=f"at most {max(0.0, 1 - waiting.promised) * spread_seconds:.1f} s of work",
            retry_seconds=waiting.seconds,
        )
    # The work that is due at its last turn runs before its last text.
    _check_slow(waiting.due_seconds, asks.patience_seconds - spread_seconds, "that is due")


def check_in_time(asks: Asks, spread_seconds: float, full_pace: Pace) -> None:
    """Check that a request would not be late even on an idle server."""
    seconds, most = full_pace.seconds_for(asks.tokens), spread_seconds or asks.patience_seconds
    if seconds > most and asks.patience_seconds > 0:  # a passed deadline is reported elsewhere
        raise OverloadedError(
            "never_in_time",
            given=f"{asks.tokens:,} tokens, which take {seconds:.1f} s here",
            expected=f"at most {most:.1f} s of work, because the deadline is in {asks.patience_seconds:.1f} s",
            retry_seconds=None,
        )


def _check_slow(seconds: float, most: float, of_what: str) -> None:
    if seconds > most:
        raise OverloadedError(
            "queue_slow",
            given=f"{seconds:.1f} s of waiting work {of_what}",
            expected=f"at most {most:g} s of waiting work",
            retry_seconds=seconds - most,
        )
