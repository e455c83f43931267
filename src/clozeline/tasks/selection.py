"""Selection of a task's items: counts of those that were dropped, by reason, and disjoint splits of the others.

The hash of an item decides its split. So an item stays in its split when others are added or removed, and copies share
a split.
"""

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from clozeline.params.tasks import FinetuneParams
from clozeline.records.clean_text import DOC_ID, columns_of
from clozeline.tasks.files import Part, given_parts

_LOG = logging.getLogger(__name__)
_NO_REASONS = ("num_read", "num_used")
STRICTEST_FIRST: tuple[Part, ...] = ("test", "validation", "train")
"""Order of precedence for an item given in several splits; no item for evaluation is trained on."""


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


def part_of(identity: str, given: Part, params: FinetuneParams) -> Part:
    """Return the split of an item given in `given`. Missing splits are taken out of `train`."""
    parts = given_parts(params)
    if given != "train":
        return given
    place = _draw(identity)
    test_fraction = 0.0 if "test" in parts else params.test_fraction
    if place < test_fraction:
        return "test"
    if "validation" not in parts and place < test_fraction + params.validation_fraction:
        return "validation"
    return "train"


def count_seen(identities: Iterable[str], pretraining_text: Path) -> int:
    """Return how many distinct identities are in the column `doc_id` of a clean text."""
    wanted = set(identities)
    seen: set[str] = set()
    for (doc_ids,) in columns_of(pretraining_text, DOC_ID):
        seen.update(wanted.intersection(doc_ids.to_pylist()))
    return len(seen)


def strictest(parts: Iterable[Part]) -> Part:
    """Return the split that an item stays in, if its copies were given in `parts`."""
    return min(parts, key=STRICTEST_FIRST.index)


def num_of_each(parts: Mapping[Part, Iterable[object]]) -> str:
    """Return the sizes for a message: `3 for train, 0 for validation, 1 for test`."""
    return ", ".join(f"{len(list(items))} for {part}" for part, items in parts.items())


def remedy(usual: str, parts: Mapping[Part, Collection[object]], num_in_several: int) -> str:
    """Return the advice for a split that is too small: `usual`, with a hint if stricter splits took its items."""
    if not num_in_several or all(parts[part] for part in ("train", "validation")):
        return usual
    return (
        f"{num_in_several:,} of the records also occur in the test or validation split, which keeps them: check whether"
        f" `splits` names one file twice; or {usual}"
    )


def _draw(identity: str) -> float:
    """Return a uniform number in [0, 1) from the identity, without a seed: all seeds use the same test items."""
    digest = hashlib.blake2b(identity.encode(), digest_size=8, person=b"part").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
