"""Records of a task as they are on disk: Parquet, JSON Lines, CSV, TSV, by the file's name; or a format of a kind."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from clozeline.errors import DataError
from clozeline.records.fields import Fields
from clozeline.records.formats import FORMATS, FormatReader, format_of
from clozeline.records.meter import Meter
from clozeline.records.streams import is_empty

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Record:
    """One item, as its file has it, and where that is."""

    values: Mapping[str, Any]
    place: str

    def text(self, field: str) -> str:
        """Empty if the record has none."""
        value = self.values[field]
        if not isinstance(value, str | None):
            raise self.refuse(field, "a string")
        return value or ""

    def category(self, field: str) -> str:
        """A string, a whole number or true/false, as a string; empty if the record has none."""
        value = self.values[field]
        if not isinstance(value, str | int | None):
            raise self.refuse(field, "one label: a string, a whole number or true/false")
        return "" if value is None else str(value)

    def number(self, field: str) -> float | None:
        """A number, or a string that is one; None if the record has none."""
        value = self.values[field]
        if value is None or value == "":
            return None
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise self.refuse(field, "a number") from error

    def strings(self, field: str) -> list[str]:
        """A list of strings; empty if the record has none."""
        value = self.values[field]
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            raise self.refuse(field, "a list of strings")
        return value

    def refuse(self, field: str, expected: str) -> DataError:
        """To be raised: the field's value is not what it should be."""
        given = self.values[field]
        return DataError(
            f"{self.place}: field `{field}` cannot be used",
            given=f"{type(given).__name__}: {str(given)[:80]}",
            expected=expected,
            do="correct the record, or name another field in params.yaml",
        )


Reader = Callable[[Path, Fields], Iterator[Record]]
FOLDER = "a folder"
"""In place of a suffix, among the readers of a kind that reads folders."""


def read_records(path: Path, fields: Fields, readers: Mapping[str, Reader] | None = None) -> Iterator[Record]:
    """Read the records of `path` in order; each has all of `fields`.

    Args:
        readers: formats of a kind of task, by the file's suffix, or `FOLDER`; beside or in place of `TABLES`.

    Raises:
        DataError: the file is missing, empty, damaged or of an unknown kind, or a record (its line is told) has other
            fields.
    """
    known = {**TABLES, **(readers or {})}
    if not path.exists():
        raise DataError(
            f"there is no file {path}",
            given=str(path),
            expected="a file with this task's records",
            do="correct `data` of this task in params.yaml",
        )
    reader = known.get(FOLDER if path.is_dir() else format_of(path))
    if reader is None and path.is_dir():
        raise _unknown_folder(path)
    if reader is None:
        raise DataError(
            f"{path} is of a kind that cannot be read",
            given=path.suffix or "no suffix",
            expected=f"one of: {', '.join(known)}",
            do="name the file for what it holds, or convert it",
        )
    if path.is_file() and is_empty(path):
        raise _no_records(path, fields)
    yield from reader(path, fields)


def _read_table(path: Path, fields: Fields, *, rows: FormatReader) -> Iterator[Record]:
    return (Record(values, place) for place, values in rows(path, fields, Meter()))


TABLES: Mapping[str, Reader] = MappingProxyType(
    {suffix: partial(_read_table, rows=rows) for suffix, rows in FORMATS.items()}
)
"""Formats of one record after the other, by the file's suffix."""


def _no_records(path: Path, fields: Fields) -> DataError:
    """The readers of formats would each say it in words of their own: no header, no JSON, too few records."""
    size_bytes = path.stat().st_size
    return DataError(
        f"{path} is empty",
        given=f"{size_bytes:,} bytes, and no text in them" if size_bytes else "0 bytes",
        expected=f"records with {', '.join(f'`{name}`' for name in fields.values())}",
        do="copy or write the file again, or correct `data` or `splits` of this task in params.yaml",
    )


def _unknown_folder(path: Path) -> DataError:
    return DataError(
        f"{path} is a folder, and no file of it is named",
        given=", ".join(sorted(file.name for file in path.iterdir())[:_MOST_NAMED]) or "nothing in it",
        expected="a file, or a folder and in `splits` the files in it",
        do="set `splits: {train: FILE, test: FILE}` of this task in params.yaml, or name a file as `data`",
    )
