"""Selection of a task's items: read, merged with their copies, counted by reason if dropped, and split.

The hash of an item decides its split. So an item stays in its split when others are added or removed, and copies share
a split. An item given in several splits stays in the strictest, so no item for evaluation is trained on.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from clozeline.params.tasks import FinetuneParams
from clozeline.records.clean_text import DOC_ID, columns_of
from clozeline.system.errors import DataError
from clozeline.tasks.files import Part, given_parts

_LOG = logging.getLogger(__name__)
_NO_REASONS = ("num_read", "num_used")
_STRICTEST_FIRST: tuple[Part, ...] = ("test", "validation", "train")


class Selectable(Protocol):
    """An item of a task, with its split and the location of its record."""

    @property
    def part(self) -> Part: ...

    @property
    def place(self) -> str: ...


Record = TypeVar("Record")
Item = TypeVar("Item", bound=Selectable)


@dataclass
class ReasonCounts:
    """Counts by reason."""

    by_reason: dict[str, int]
    # Reason → location of the first record counted for it. Limits (`max_…`) have none: no record is at fault.
    first_places: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_records(cls, *reasons: str) -> Self:
        """Return counts of records, where `num_read` is the sum of `num_used` and every reason to drop a record.

        Every kind drops those `in_several_parts`: copies of an item that a stricter split holds.
        """
        return cls(dict.fromkeys((*_NO_REASONS, *reasons), 0))

    def __getitem__(self, reason: str) -> int:
        return self.by_reason[reason]

    def add(self, reason: str, *places: str) -> None:
        """Count the records at the locations `places` under `reason`."""
        self.by_reason[reason] += len(places)
        if places:
            self.first_places.setdefault(reason, places[0])

    def add_limited(self, reason: str, num: int) -> None:
        """Count records that a limit of the task leaves out."""
        self.by_reason[reason] += num

    @property
    def reasons_text(self) -> str:
        """Reasons that occurred, with counts and first locations, for a log line; empty if none did."""
        counts = {name: num for name, num in self.by_reason.items() if num and name not in _NO_REASONS}
        places = {name: f" (first: {place})" for name, place in self.first_places.items()}
        words = {name: name.removeprefix("num_").replace("_", " ") for name in counts}
        return ", ".join(f"{words[name]} {num:,}{places.get(name, '')}" for name, num in counts.items())


@dataclass(frozen=True)
class Splits(Generic[Item]):
    """The items of a task, in an order that does not depend on that of the records."""

    train: list[Item]
    validation: list[Item]
    test: list[Item]
    count: ReasonCounts

    @classmethod
    def of(
        cls, items: Iterable[Item], order: Callable[[Item], Any], count: ReasonCounts, most: int | None = None
    ) -> Self:
        """Split the items; the first `most` training items are used. Log one line if records were dropped."""
        parts: dict[Part, list[Item]] = {"train": [], "validation": [], "test": []}
        for item in sorted(items, key=order):
            parts[item.part].append(item)
        train = parts["train"][:most]
        if most is not None:
            count.add_limited("beyond_max_train", len(parts["train"]) - len(train))
        made = cls(train, parts["validation"], parts["test"], count)
        count.by_reason["num_used"] = sum(map(len, made.parts.values()))
        if reasons := count.reasons_text:
            _LOG.info(
                "records: %s read, %s used; left out: %s", f"{count['num_read']:,}", f"{count['num_used']:,}", reasons
            )
        return made

    @property
    def parts(self) -> dict[Part, list[Item]]:
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def sizes(self) -> dict[str, int]:
        """Number of items of each split, as figures of the task."""
        return {f"num_{part}": len(items) for part, items in self.parts.items()}

    def too_few(self, what: str, needs: str, do: str) -> DataError:
        """Return the error for splits that are too small, with a hint if stricter splits took items of others."""
        sizes = ", ".join(f"{len(items)} for {part}" for part, items in self.parts.items())
        num_in_several = self.count["in_several_parts"]
        if num_in_several and not (self.train and self.validation):
            do = (
                f"{num_in_several:,} of the records also occur in the test or validation split, which keeps them: check"
                f" whether `splits` names one file twice; or {do}"
            )
        read, used = self.count["num_read"], self.count["num_used"]
        return DataError(f"too few {what}: {read} records, {used} of use: {sizes}; a task needs {needs}", do=do)


def select(
    records: Iterable[Record],
    item_of: Callable[[Record], Item | tuple[str, str]],
    key_of: Callable[[Item], object],
    merged: Callable[[list[Item]], Iterable[Item]],
    count: ReasonCounts,
) -> list[Item]:
    """Return the items of use in the order of the records; of items with one key those of the strictest split.

    Args:
        item_of: the item of a record; or the reason why it cannot be used, with the record's location.
        merged: the items to keep, of items with one key.
    """
    copies: dict[object, list[Item]] = {}
    for record in records:
        count.by_reason["num_read"] += 1
        item = item_of(record)
        if isinstance(item, tuple):
            count.add(*item)
        else:
            copies.setdefault(key_of(item), []).append(item)
    kept: list[Item] = []
    for of_key in copies.values():
        part = strictest(item.part for item in of_key)
        count.add("in_several_parts", *(item.place for item in of_key if item.part != part))
        kept += merged([item for item in of_key if item.part == part])
    return kept


def strictest(parts: Iterable[Part]) -> Part:
    """Return the split that an item stays in, if its copies were given in `parts`."""
    return min(parts, key=_STRICTEST_FIRST.index)


def part_of(identity: str, given: Part, params: FinetuneParams) -> Part:
    """Return the split of an item given in `given`. Missing splits are taken out of `train`.

    The hash of the identity is a uniform number in [0, 1), without a seed: all seeds use the same test items.
    """
    parts = given_parts(params)
    if given != "train":
        return given
    digest = hashlib.blake2b(identity.encode(), digest_size=8, person=b"part").digest()
    place = (int.from_bytes(digest, "little") >> 11) * 2.0**-53
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
