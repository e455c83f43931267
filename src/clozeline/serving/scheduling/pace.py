"""How fast work is done here, measured while it is done."""

_KEPT = 0.95
"""How much of what was measured before counts beside a new micro-batch: about the last 20 of them do."""


class Pace:
    """Seconds that a token takes, over all models, of `num_workers` workers together."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._tokens = 0.0
        self._seconds = 0.0

    def note(self, tokens: int, seconds: float) -> None:
        """A worker ran `tokens`, padding among them, in `seconds`."""
        self._tokens = _KEPT * self._tokens + tokens
        self._seconds = _KEPT * self._seconds + seconds

    def seconds_for(self, tokens: float) -> float:
        """How long all workers take for `tokens`; 0 before anything was measured."""
        return tokens * self._seconds / self._tokens / self._num_workers if self._tokens else 0.0
