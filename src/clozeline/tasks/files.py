"""Sources of a task's records: one file, a file for each split, or a hub dataset.

The suffix of a file says how to read it: as Parquet, JSON Lines, CSV, TSV, or a format of the kind of task.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from clozeline.params.tasks import FinetuneParams, HubParams
from clozeline.records.reading.files import FORMATS, PARQUET_SUFFIXES, Fields, FormatReader, format_of
from clozeline.records.reading.hub import HubSplit, commit_of, hub_records
from clozeline.records.reading.streams import is_empty
from clozeline.system.errors import DataError

_MOST_NAMED = 5
# Key of the reader of folders, in place of a suffix.
FOLDER = "a folder"
Part = Literal["train", "validation", "test"]
_LOG = logging.getLogger(__name__)


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
