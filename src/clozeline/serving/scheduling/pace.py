"""How fast work is done here, measured while it is done."""

from weakref import WeakKeyDictionary

from clozeline.serving.scheduling.work import Model

_KEPT = 0.95
"""How much of what was measured before counts beside a new micro-batch: about the last 20 of them do."""


class Pace:
    """Seconds that a token takes, of `num_workers` workers together."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def is_measured(self) -> bool:
        return self._tokens > 0

    def note(self, tokens: int, seconds: float) -> None:
        """A worker ran `tokens`, padding among them, in `seconds`."""
        self._tokens = _KEPT * self._tokens + tokens
        self._seconds = _KEPT * self._seconds + seconds

    def seconds_for(self, tokens: float) -> float:
        """How long all workers take for `tokens`; 0 before anything was measured."""
        return tokens * self._seconds / self._tokens / self._num_workers if self._tokens else 0.0


class Paces:
    """The pace of each model, which may be a hundred times that of another beside it."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._of: WeakKeyDictionary[Model, Pace] = WeakKeyDictionary()  # a model that was replaced is let go of
        self.of_all = Pace(num_workers)

    def note(self, model: Model, tokens: int, seconds: float) -> None:
        self.of(model).note(tokens, seconds)
        self.of_all.note(tokens, seconds)

    def of(self, model: Model) -> Pace:
        return self._of.setdefault(model, Pace(self._num_workers))

    def known_of(self, model: Model) -> Pace:
        """Of a model that has not run yet, that of all."""
        pace = self.of(model)
        return pace if pace.is_measured else self.of_all
