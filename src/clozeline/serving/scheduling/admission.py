"""Who may wait: a request as a whole, or not at all.

What was admitted is answered in a bounded time: nothing passes it once its turn has come (line.py), and by then no more
waits before it than is admitted at all.

A bulk request, one that would take more than half of the tokens or seconds that may wait, does not shut others out: it
counts only for as much of it as is due. Its texts have their turns one after the other, over the time that it has. As
what bulk requests are to have run in each second is never more than a second's work, what is due does not grow by
them; so hardly more than `max_waiting_tokens` is ever due, and the last text of a bulk request is answered little more
than `max_wait_seconds` after its turn.
"""

import math
from dataclasses import dataclass
from typing import Literal

from clozeline.serving.scheduling.pace import Pace

MAX_WAITING_TOKENS = 65_536
MAX_WAIT_SECONDS = 10.0
_BULK = 0.5
_MAX_DELAY = 1.25
"""Of the seconds that may be due, how long they take at most: up to a tenth is padding, and some of the texts that run
along came later."""
_MAX_SPREAD_SECONDS = 600.0

Reason = Literal["queue_full", "queue_slow", "tokenizer_full", "never_in_time"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not wait, and when it may be sent again."""

    reason: Reason
    given: str
    expected: str
    retry_after_seconds: int | None
    """None: it would be refused again, however little waits."""


@dataclass(frozen=True, slots=True)
class Asks:
    """What a request wants of the workers."""

    tokens: int
    patience_seconds: float = math.inf
    """Until its deadline."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a request finds."""

    seconds: float
    """Of work, at the pace of each model: all that waits,"""
    due_seconds: float
    """and what of it counts for who comes now;"""
    due_tokens: int
    """in tokens."""
    promised: float = 0.0
    """Of each second, how much bulk requests are to have for them."""


@dataclass(frozen=True, slots=True)
class Admission:
    max_waiting_tokens: int = MAX_WAITING_TOKENS
    """Most tokens that may wait and be due, and so before any request."""
    max_wait_seconds: float = MAX_WAIT_SECONDS
    """Most seconds of work, as it was measured, that may wait and be due."""

    def spread_seconds(self, asks: Asks, pace: Pace, batch_tokens: int) -> float:
        """Over how long a request's texts have their turns; 0: together, for it is no bulk request.

        What one micro-batch holds is none, however little may wait. After the last turn there is time left for what may
        be due by then; of a request that has less than twice as long, half of its time.
        """
        share = max(asks.tokens / self.max_waiting_tokens, pace.seconds_for(asks.tokens) / self.max_wait_seconds)
        if share <= _BULK or asks.tokens <= batch_tokens:
            return 0.0
        patience_seconds = min(max(0.0, asks.patience_seconds), _MAX_SPREAD_SECONDS)
        return max(patience_seconds - _MAX_DELAY * self.max_wait_seconds, patience_seconds / 2)

    def refusal(self, waiting: Waiting, asks: Asks, pace: Pace) -> Refusal | None:
        """Why a request whose texts have their turns together may not join what waits; None: it may.

        `pace`, here and below, is that of its model. Where nothing is due, it may.
        """
        if not waiting.due_tokens:
            return None
        together = waiting.due_tokens + asks.tokens
        if together > self.max_waiting_tokens:
            return Refusal(
                "queue_full",
                given=f"{together:,} tokens with this request",
                expected=f"at most {self.max_waiting_tokens:,} tokens that wait",
                retry_after_seconds=_whole(pace.seconds_for(together - self.max_waiting_tokens)),
            )
        seconds = waiting.due_seconds + pace.seconds_for(asks.tokens)
        return _slow(seconds, min(self.max_wait_seconds, asks.patience_seconds), "with this request")

    def bulk_refusal(self, waiting: Waiting, asks: Asks, spread_seconds: float, pace: Pace) -> Refusal | None:
        """Why a bulk request may not wait; None: it may, and is in time if no more is due after its turns than now, or
        if it left time for as much as may be.
        """
        seconds = pace.seconds_for(asks.tokens)
        if waiting.promised + seconds / spread_seconds <= 1:
            # After its last turn, what is due by then runs before its last text.
            return _slow(waiting.due_seconds, asks.patience_seconds - spread_seconds, "that is due")
        return Refusal(
            "queue_slow",
            given=f"{seconds:.1f} s of work, beside other large requests",
            expected=f"at most {max(0.0, 1 - waiting.promised) * spread_seconds:.1f} s of work",
            retry_after_seconds=_whole(waiting.seconds),
        )


def never_in_time(asks: Asks, spread_seconds: float, pace: Pace) -> Refusal | None:
    """Why a request would be too late even if nothing waited; None: it would not.

    `pace` is that of full micro-batches: a request of few tokens takes longer for each, and may be tried.
    """
    seconds, most = pace.seconds_for(asks.tokens), spread_seconds or asks.patience_seconds
    if seconds <= most or asks.patience_seconds <= 0:  # which is too late already, and told as that
        return None
    return Refusal(
        "never_in_time",
        given=f"{asks.tokens:,} tokens, which take {seconds:.1f} s here",
        expected=f"at most {most:.1f} s of work in a request that has {asks.patience_seconds:.1f} s",
        retry_after_seconds=None,
    )


def _slow(seconds: float, most: float, of_what: str) -> Refusal | None:
    if seconds <= most:
        return None
    return Refusal(
        "queue_slow",
        given=f"{seconds:.1f} s of work {of_what}",
        expected=f"at most {most:g} s of work that waits",
        retry_after_seconds=_whole(seconds - most),
    )


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds))
