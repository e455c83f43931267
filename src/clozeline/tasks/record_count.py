"""Counts of a task's records: how many were dropped, for which reason, and the location of the first of each."""

import logging
from dataclasses import asdict, dataclass

_LOG = logging.getLogger(__name__)
_NO_REASONS = ("num_read", "num_used")


@dataclass
class Counted:
    """Counts by reason. A kind of task adds a field for each reason. `first_places` is not a field, because only counts
    belong in a metric file.
    """

    def __post_init__(self) -> None:
        self.first_places: dict[str, str] = {}
        """Reason → location of the first record counted for it. Limits (`max_…`) have none, because no record is at
        fault."""

    def add(self, reason: str, *places: str) -> None:
        """Count the records at the locations `places` under `reason`."""
        setattr(self, reason, getattr(self, reason) + len(places))
        if places:
            self.first_places.setdefault(reason, places[0])

    @property
    def reasons_text(self) -> str:
        """Reasons that occurred, with counts and first locations, for a log line; empty if none did."""
        counts = {name: num for name, num in asdict(self).items() if num and name not in _NO_REASONS}
        return ", ".join(f"{_in_words(name)} {num:,}{self._place_of(name)}" for name, num in counts.items())

    def _place_of(self, reason: str) -> str:
        return f" (first: {self.first_places[reason]})" if reason in self.first_places else ""


@dataclass
class RecordCount(Counted):
    """Counts of records. `num_read` is the sum of `num_used` and every reason."""

    num_read: int = 0
    num_used: int = 0

    def tell(self) -> None:
        """Log one line if records were dropped."""
        if reasons := self.reasons_text:
            _LOG.info("records: %s read, %s used; left out: %s", f"{self.num_read:,}", f"{self.num_used:,}", reasons)


def _in_words(reason: str) -> str:
    return reason.removeprefix("num_").replace("_", " ")
