"""Admission: a request is queued or refused as a whole.

An admitted request is answered in bounded time: once its turn has come, no other request passes it (line.py), and the
work ahead of it is at most what admission allows.

A bulk request needs more than half of the tokens or seconds that may wait. The turns of its texts are spread over most
of the time until its deadline. Only texts whose turn has come are due, and only due texts count, so bulk requests do
not keep others out. All bulk requests together are granted at most one second of work per second, so they do not
increase the due work. It hardly ever exceeds `max_waiting_tokens`, and the last text of a bulk request is answered
little more than `max_wait_seconds` after its turn.
"""

import math
from dataclasses import dataclass
from typing import Literal

from clozeline.serving.scheduling.pace import Pace

MAX_WAITING_TOKENS = 65_536
MAX_WAIT_SECONDS = 10.0
_BULK = 0.5
_MAX_DELAY = 1.25
"""Upper bound of running time / seconds of due work: up to a tenth is padding, and some later texts run in the same
batches."""
_MAX_SPREAD_SECONDS = 600.0

Reason = Literal["crowded", "queue_full", "queue_slow", "tokenizer_full", "never_in_time"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason to refuse a request, and the time after which a retry makes sense."""

    reason: Reason
    given: str
    expected: str
    retry_after_seconds: int | None
    """None: even an idle server would refuse it."""


@dataclass(frozen=True, slots=True)
class Asks:
    """Work of one request."""

    tokens: int
    patience_seconds: float = math.inf
    """Seconds until its deadline."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Work that waits when a request arrives."""

    seconds: float
    """Seconds of all waiting work, at the pace of each model."""
    due_seconds: float
    """Seconds of the work that is due: it excludes bulk texts whose turn has not come."""
    due_tokens: int
    """Tokens of the work that is due."""
    promised: float = 0.0
    """Share of each second that is promised to bulk requests."""


@dataclass(frozen=True, slots=True)
class Admission:
    max_waiting_tokens: int = MAX_WAITING_TOKENS
    """Maximum number of tokens that may be due, and so ahead of any request."""
    max_wait_seconds: float = MAX_WAIT_SECONDS
    """Maximum seconds of work that may be due, at the measured pace."""

    def spread_seconds(self, asks: Asks, pace: Pace, batch_tokens: int) -> float:
        """Return the seconds over which the turns of a bulk request are spread; 0 for any other request.

        A request that fits one micro-batch is never bulk. The last turn leaves time for the work that may be due by
        then; a request with less than twice that time spreads its turns over half of its time.
        """
        share = max(asks.tokens / self.max_waiting_tokens, pace.seconds_for(asks.tokens) / self.max_wait_seconds)
        if share <= _BULK or asks.tokens <= batch_tokens:
            return 0.0
        patience_seconds = min(max(0.0, asks.patience_seconds), _MAX_SPREAD_SECONDS)
        return max(patience_seconds - _MAX_DELAY * self.max_wait_seconds, patience_seconds / 2)

    def refusal(self, waiting: Waiting, asks: Asks, pace: Pace) -> Refusal | None:
        """Return the reason to refuse a request that is not bulk; None if it may wait.

        `pace`, here and below, is that of its model. If nothing is due, the request may wait.
        """
        if not waiting.due_tokens:
            return None
        together = waiting.due_tokens + asks.tokens
        if together > self.max_waiting_tokens:
            return Refusal(
                "queue_full",
                given=f"{together:,} waiting tokens with this request",
                expected=f"at most {self.max_waiting_tokens:,} waiting tokens",
                retry_after_seconds=_whole(pace.seconds_for(together - self.max_waiting_tokens)),
            )
        seconds = waiting.due_seconds + pace.seconds_for(asks.tokens)
        return _slow(seconds, min(self.max_wait_seconds, asks.patience_seconds), "with this request")

    def bulk_refusal(self, waiting: Waiting, asks: Asks, spread_seconds: float, pace: Pace) -> Refusal | None:
        """Return the reason to refuse a bulk request; None if it may wait.

        An admitted request is in time if no more work is due at its last turn than now, or if its turns leave time for
        the maximum.
        """
        seconds = pace.seconds_for(asks.tokens)
        if waiting.promised + seconds / spread_seconds <= 1:
            # The work that is due at its last turn runs before its last text.
            return _slow(waiting.due_seconds, asks.patience_seconds - spread_seconds, "that is due")
        return Refusal(
            "queue_slow",
            given=f"{seconds:.1f} s of work, besides other large requests",
            expected=f"at most {max(0.0, 1 - waiting.promised) * spread_seconds:.1f} s of work",
            retry_after_seconds=_whole(waiting.seconds),
        )


def never_in_time(asks: Asks, spread_seconds: float, pace: Pace) -> Refusal | None:
    """Return why a request would be late even on an idle server; None if it would not.

    `pace` is that of full micro-batches, a lower bound: small requests take longer per token, and may be tried.
    """
    seconds, most = pace.seconds_for(asks.tokens), spread_seconds or asks.patience_seconds
    if seconds <= most or asks.patience_seconds <= 0:  # a passed deadline is reported elsewhere
        return None
    return Refusal(
        "never_in_time",
        given=f"{asks.tokens:,} tokens, which take {seconds:.1f} s here",
        expected=f"at most {most:.1f} s of work, because the deadline is in {asks.patience_seconds:.1f} s",
        retry_after_seconds=None,
    )


def _slow(seconds: float, most: float, of_what: str) -> Refusal | None:
    if seconds <= most:
        return None
    return Refusal(
        "queue_slow",
        given=f"{seconds:.1f} s of waiting work {of_what}",
        expected=f"at most {most:g} s of waiting work",
        retry_after_seconds=_whole(seconds - most),
    )


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds))
