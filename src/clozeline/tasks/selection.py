"""Selection of a task's items: read, merged with their copies, counted by reason if dropped, and split.

The hash of an item decides its split. So an item stays in its split when others are added or removed, and copies share
a split. An item given in several splits stays in the strictest, so no item for evaluation is trained on.

Records are read from one file, from a file for each split, or from a hub dataset. The suffix of a file says how to read
it: as Parquet, JSON Lines, CSV, TSV, or a format of the kind of task.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from clozeline.params.tasks import FinetuneParams, HubParams
from clozeline.records.clean_text import DOC_ID, columns_of
from clozeline.records.reading.files import (
    FORMATS,
    PARQUET_SUFFIXES,
    Fields,
    FormatReader,
    HubSplit,
    commit_of,
    format_of,
    hub_records,
)
from clozeline.records.reading.streams import is_empty
from clozeline.system.errors import DataError

_MOST_NAMED = 5
# Key of the reader of folders, in place of a suffix.
FOLDER = "a folder"
Part = Literal["train", "validation", "test"]
_LOG = logging.getLogger(__name__)
_LOG = logging.getLogger(__name__)
_NO_REASONS = ("num_read", "num_used")
_STRICTEST_FIRST: tuple[Part, ...] = ("test", "validation", "train")


@dataclass(frozen=True, slots=True)
class LabelledRecord:
    """Fields of one record as its file has them, and its location."""

    values: Mapping[str, Any]
    place: str

    def text(self, field: str) -> str:
        """Return a string; empty if the record has none."""
        value = self.values[field]
        if not isinstance(value, str | None):
            raise self.refuse(field, "a string")
        return value or ""

    def category(self, field: str) -> str:
        """Return a string, an integer or a boolean as a string; empty if the record has none."""
        value = self.values[field]
        if not isinstance(value, str | int | None):
            raise self.refuse(field, "one label: a string, a whole number or true/false")
        return "" if value is None else str(value)

    def number(self, field: str) -> float | None:
        """Return a number, also from a string that spells one; None if the record has none."""
        value = self.values[field]
        if value is None or value == "":
            return None
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise self.refuse(field, "a number") from error

    def strings(self, field: str) -> list[str]:
        """Return a list of strings; empty if the record has none."""
        value = self.values[field]
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            raise self.refuse(field, "a list of strings")
        return value

    def refuse(self, field: str, expected: str) -> DataError:
        """Return the error that the caller raises if the field's value is not as `expected`."""
        given = self.values[field]
        return DataError(
            f"{self.place}: field `{field}` must be {expected}, got {type(given).__name__}: {str(given)[:80]}",
            do="correct the record, or name another field",
        )


Reader = Callable[[Path, Fields], Iterator[LabelledRecord]]


def read_records(path: Path, fields: Fields, readers: Mapping[str, Reader] | None = None) -> Iterator[LabelledRecord]:
    """Yield the records of `path` in order; each has all of `fields`. A folder `NAME.parquet` is read file by file.

    Args:
        readers: readers of the kind of task by file suffix or `FOLDER`; they extend or override `TABLES`.

    Raises:
        DataError: the file is missing, empty, damaged or of an unknown format, or a record lacks a field; names the
            line.
    """
    known = {**TABLES, **(readers or {})}
    if not path.exists():
        raise DataError(f"there is no file {path}", do="correct `data` of this task")
    if parts := _parts_of(path):
        for file in parts:
            yield from read_records(file, fields, readers)
        return
    reader = known.get(FOLDER if path.is_dir() else format_of(path))
    if reader is None and path.is_dir():
        raise DataError(
            f"{path} is a folder, and `splits` names no file in it",
            given=", ".join(sorted(file.name for file in path.iterdir())[:_MOST_NAMED]) or "an empty folder",
            do="set `splits: {train: FILE, test: FILE}` of this task, or set `data` to a file",
        )
    if reader is None:
        raise DataError(
            f"{path} has a format that cannot be read, not one of {', '.join(known)}",
            do="give the file the suffix of its format, or convert it",
        )
    if path.is_file() and is_empty(path):
        raise DataError(
            f"{path} is empty ({path.stat().st_size:,} bytes): expected records with {', '.join(fields.values())}",
            do="copy or write the file again, or correct `data` or `splits` of this task",
        )
    yield from reader(path, fields)


def _parts_of(path: Path) -> list[Path]:
    """Return the files of a folder `NAME.parquet`, such as a split of much clean text; none of another path."""
    is_table = path.is_dir() and format_of(path) in PARQUET_SUFFIXES
    return sorted(path.glob(f"[!.]*{path.suffix}")) if is_table else []


def _read_table(path: Path, fields: Fields, *, rows: FormatReader) -> Iterator[LabelledRecord]:
    return (LabelledRecord(values, place) for place, values in rows(path, fields))


# Readers of table formats, keyed by file suffix.
TABLES: Mapping[str, Reader] = {suffix: partial(_read_table, rows=rows) for suffix, rows in FORMATS.items()}


def records_of(
    params: FinetuneParams, data: Path, fields: Fields, readers: Mapping[str, Reader] | None = None
) -> Iterator[tuple[Part, LabelledRecord]]:
    """Yield each record with the split of its file; `train` if the task names no splits.

    Args:
        fields: knob of the task → field name; every record must have these fields.
        readers: readers of this kind of task in addition to the tables, keyed by file suffix.

    Raises:
        DataError: the data cannot be read; names file and line.
        TransientError: the hub did not answer.
    """
    for part, name in given_parts(params).items():
        if params.hub is not None:
            rows = hub_records(_split(params.hub, name or "train"), fields)
            yield from ((part, LabelledRecord(values, place)) for place, values in rows)
        else:
            yield from ((part, record) for record in read_records(_path(data, name), fields, readers))


def files_named(params: FinetuneParams, data: Path) -> list[Path]:
    """Return the files that the task names."""
    return [_path(data, name) for name in given_parts(params).values()]


def hub_commit(params: FinetuneParams) -> str | None:
    """Return the commit of the hub dataset that `hub` stands for now; None if it is unknown or the task reads files.

    Raises:
        DataError, TransientError: as in `records_of`.
    """
    if params.hub is None:
        return None
    names = (name for name in given_parts(params).values() if name is not None)
    commit = commit_of(_split(params.hub, next(names, "train")))
    if commit and params.hub.revision is None:
        _LOG.warning("%s: the dataset may change: set `hub.revision` of this task to pin a commit", params.hub.dataset)
    return commit


def at_commit(params: FinetuneParams, commit: str | None) -> FinetuneParams:
    """Return the params with `commit` in `hub`, so that every split and every seed reads the same commit."""
    if params.hub is None or commit is None:
        return params
    return params.model_copy(update={"hub": params.hub.model_copy(update={"revision": commit})})


def given_parts(params: FinetuneParams) -> dict[Part, str | None]:
    """Return the given splits, each with its file or hub split; None stands for all of `data`."""
    splits = params.splits
    if splits is None:
        return {"train": None}
    named: dict[Part, str | None] = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    return {part: name for part, name in named.items() if name is not None}


def _path(folder: Path, name: str | None) -> Path:
    """Return the file `name` in `folder`; without a name `folder` itself, which may be a file."""
    if name is None:
        return folder
    if not folder.is_dir():
        raise DataError(
            f"`data: {folder}` is not a folder, but `splits` names the file {name} in it",
            do="correct `data` of this task, or set `splits: null` for one file",
        )
    return folder / name


def _split(hub: HubParams, split: str) -> HubSplit:
    return HubSplit(hub.dataset, hub.subset, split, hub.revision, "`hub` and `splits` of this task")


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
