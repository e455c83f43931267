"""What became of a task's records: how many were left out, for which reasons, and where the first of each stands."""

import logging
from dataclasses import asdict, dataclass

_LOG = logging.getLogger(__name__)
_NO_REASONS = ("num_read", "num_used")


@dataclass
class Counted:
    """A kind of task adds a field for each reason. `first_places` is no field: a metric file has the counts alone."""

    def __post_init__(self) -> None:
        self.first_places: dict[str, str] = {}
        """Reason → where the first that it was counted for stands; of limits (`max_…`), which no record is at
        fault for, none."""

    def add(self, reason: str, *places: str) -> None:
        """Count what stands at each of `places` for the field `reason`."""
        setattr(self, reason, getattr(self, reason) + len(places))
        if places:
            self.first_places.setdefault(reason, places[0])

    @property
    def told_reasons(self) -> str:
        """Those that there are, with their numbers and first places; empty if there are none."""
        counts = {name: num for name, num in asdict(self).items() if num and name not in _NO_REASONS}
        return ", ".join(f"{_in_words(name)} {num:,}{self._place_of(name)}" for name, num in counts.items())

    def _place_of(self, reason: str) -> str:
        return f" (first: {self.first_places[reason]})" if reason in self.first_places else ""


@dataclass
class RecordCount(Counted):
    """Read = used + every reason."""

    num_read: int = 0
    num_used: int = 0

    def tell(self) -> None:
        """One line of the log, if any were left out."""
        if told := self.told_reasons:
            _LOG.info("records: %s read, %s used; left out: %s", f"{self.num_read:,}", f"{self.num_used:,}", told)


def _in_words(reason: str) -> str:
    return reason.removeprefix("num_").replace("_", " ")
