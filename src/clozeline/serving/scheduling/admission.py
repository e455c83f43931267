"""Who may wait: a request as a whole, or not at all.

What was admitted is answered in a bounded time: nothing passes it once its turn has come (line.py), and by then no more
waits before it than is admitted at all.
"""

import math
from dataclasses import dataclass
from typing import Literal

from clozeline.serving.scheduling.pace import Pace

MAX_WAITING_TOKENS = 65_536
MAX_WAIT_SECONDS = 10.0

Reason = Literal["queue_full", "queue_slow", "tokenizer_full"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not wait, and when it may be sent again."""

    reason: Reason
    given: str
    expected: str
    retry_after_seconds: int


@dataclass(frozen=True, slots=True)
class Admission:
    max_waiting_tokens: int = MAX_WAITING_TOKENS
    max_wait_seconds: float = MAX_WAIT_SECONDS
    """Most seconds of work, as it was measured, that may wait."""

    def refusal(self, waiting_tokens: int, tokens: int, pace: Pace) -> Refusal | None:
        """Why `tokens` may not join `waiting_tokens`; None: they may. Where nothing waits, anything may."""
        if not waiting_tokens:
            return None
        together = waiting_tokens + tokens
        if together > self.max_waiting_tokens:
            return Refusal(
                "queue_full",
                given=f"{together:,} tokens with this request",
                expected=f"at most {self.max_waiting_tokens:,} tokens that wait",
                retry_after_seconds=_whole(pace.seconds_for(together - self.max_waiting_tokens)),
            )
        seconds = pace.seconds_for(together)
        if seconds > self.max_wait_seconds:
            return Refusal(
                "queue_slow",
                given=f"{seconds:.1f} s of work with this request",
                expected=f"at most {self.max_wait_seconds:g} s of work that waits",
                retry_after_seconds=_whole(seconds - self.max_wait_seconds),
            )
        return None


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds))
