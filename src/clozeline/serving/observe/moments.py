"""When what happened to a request."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moments:
    """Of one request, in seconds of a monotonic clock."""

    arrived: float
    submitted: float
    """Tokenized and admitted."""
    started: float
    """Its first text ran."""
    answered: float
