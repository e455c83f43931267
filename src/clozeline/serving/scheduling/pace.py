"""Speed of the workers, measured while they run."""

from weakref import WeakKeyDictionary

from clozeline.serving.scheduling.work import Model

_KEPT = 0.95
"""Factor on older measurements with each new micro-batch: about the last 20 count."""


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
        self._of: WeakKeyDictionary[Model, Pace] = WeakKeyDictionary()  # keeps no reference to a replaced model
        self.of_all = Pace(num_workers)

    def note(self, model: Model, tokens: int, seconds: float) -> None:
        self.of(model).note(tokens, seconds)
        self.of_all.note(tokens, seconds)

    def of(self, model: Model) -> Pace:
        return self._of.setdefault(model, Pace(self._num_workers))

    def known_of(self, model: Model) -> Pace:
        """Return the pace of `model`; the pace of all models if it has not run yet."""
        pace = self.of(model)
        return pace if pace.is_measured else self.of_all
