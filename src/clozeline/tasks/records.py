"""Read a task's records by file suffix: Parquet, JSON Lines, CSV, TSV, or a format of the kind of task."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from clozeline.errors import DataError
from clozeline.records.files.fields import Fields
from clozeline.records.files.formats import FORMATS, PARQUET_SUFFIXES, FormatReader, format_of
from clozeline.records.files.meter import Meter
from clozeline.records.files.streams import is_empty

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Record:
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


Reader = Callable[[Path, Fields], Iterator[Record]]
FOLDER = "a folder"
"""Key of the reader of folders, in place of a suffix."""


def read_records(path: Path, fields: Fields, readers: Mapping[str, Reader] | None = None) -> Iterator[Record]:
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


def _read_table(path: Path, fields: Fields, *, rows: FormatReader) -> Iterator[Record]:
    return (Record(values, place) for place, values in rows(path, fields, Meter()))


TABLES: Mapping[str, Reader] = MappingProxyType(
    {suffix: partial(_read_table, rows=rows) for suffix, rows in FORMATS.items()}
)
"""Readers of table formats, keyed by file suffix."""
