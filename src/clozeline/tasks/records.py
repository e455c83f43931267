"""Records of a task as they are on disk: Parquet, JSON Lines, CSV, TSV, by the file's name; or a format of a kind."""

import csv
import difflib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.errors import DataError
from clozeline.tasks.json_values import parsed

_MOST_FIELD_CHARACTERS = 32_000_000
_MOST_NAMED = 5
_SEPARATORS: Mapping[str, str] = MappingProxyType({",": "commas", "\t": "TABs", ";": "semicolons", "|": "upright bars"})

Fields = Mapping[str, str]
"""Knob of the task → the field that it names: messages speak of both."""


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
        DataError: the file is missing, of an unknown kind or damaged, or a record has other fields; with its line.
    """
    known = {**TABLES, **(readers or {})}
    if not path.exists():
        raise DataError(
            f"there is no file {path}",
            given=str(path),
            expected="a file with this task's records",
            do="correct `data` of this task in params.yaml",
        )
    reader = known.get(FOLDER if path.is_dir() else path.suffix.lower())
    if reader is None and path.is_dir():
        raise _unknown_folder(path)
    if reader is None:
        raise DataError(
            f"{path} is of a kind that cannot be read",
            given=path.suffix or "no suffix",
            expected=f"one of: {', '.join(known)}",
            do="name the file for what it holds, or convert it",
        )
    yield from reader(path, fields)


def check_fields(present: Collection[str], fields: Fields, place: object) -> None:
    """Raises:
    DataError: a field that the task names is not among those present.
    """
    for knob, name in fields.items():
        if name not in present:
            near = difflib.get_close_matches(name, present, n=1)
            raise DataError(
                f"{place}: there is no field `{name}`",
                given=f"fields: {', '.join(present) or 'none'}",
                expected=f"a field `{name}` (`{knob}` of this task)",
                do=f"set `{knob}` to {near[0] if near else 'one of these fields'} in params.yaml",
            )


def _read_parquet(path: Path, fields: Fields) -> Iterator[Record]:
    try:
        with pq.ParquetFile(path) as file:
            check_fields(file.schema_arrow.names, fields, path)
            row = 0
            for batch in file.iter_batches(columns=[*fields.values()]):
                for values in batch.to_pylist():
                    row += 1
                    yield Record(values, f"{path}, row {row}")
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{path} cannot be read", given=str(error), expected="a Parquet file", do="write it again"
        ) from error


def read_json_lines(path: Path, fields: Fields) -> Iterator[Record]:
    """As in `TABLES`, whatever the file is called."""
    for number, line in enumerate(lines_of(path), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            values = parsed(line)
        except ValueError as error:
            raise _not_an_object(place, f"{error}: {line.strip()[:80]}") from error
        if not isinstance(values, dict):
            raise _not_an_object(place, line.strip()[:80])
        check_fields(values, fields, place)
        yield Record(values, place)


def _read_separated(path: Path, fields: Fields, *, delimiter: str) -> Iterator[Record]:
    csv.field_size_limit(_MOST_FIELD_CHARACTERS)
    rows = csv.reader(lines_of(path), delimiter=delimiter, strict=True)
    try:
        header = next(rows, [])
        _check_separator(header, delimiter, f"{path}, line 1")
        check_fields(header, fields, f"{path}, line 1")
        for row in rows:
            if not row or (len(row) != len(header) and not any(map(str.strip, row))):
                continue  # a blank line may hold separators or spaces
            place = f"{path}, line {rows.line_num}"
            if len(row) != len(header):
                raise _not_separated(place, f"{len(row)} columns under a header of {len(header)}")
            yield Record(dict(zip(header, row, strict=True)), place)
    except csv.Error as error:
        raise _not_separated(f"{path}, line {rows.line_num}", str(error)) from error


TABLES: Mapping[str, Reader] = MappingProxyType(
    {
        ".parquet": _read_parquet,
        ".jsonl": read_json_lines,
        ".ndjson": read_json_lines,
        ".csv": partial(_read_separated, delimiter=","),
        ".tsv": partial(_read_separated, delimiter="\t"),
    }
)
"""Formats of one record after the other, by the file's suffix."""


def lines_of(path: Path) -> Iterator[str]:
    """Lines with their ends as they are.

    Raises:
        DataError: the file is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from file
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8",
            given=f"bytes {error.object[error.start : error.start + 4].hex(' ')} near byte {error.start}",
            expected="UTF-8 text",
            do=f"convert it: `iconv -f LATIN1 -t UTF-8 {path.name} > NEW` (or -f UTF-16)",
        ) from error


def _check_separator(header: Sequence[str], delimiter: str, place: str) -> None:
    others = [name for mark, name in _SEPARATORS.items() if mark != delimiter and mark in "".join(header)]
    if len(header) == 1 and others:
        raise DataError(
            f"{place}: the columns stand between something else than the file's name says",
            given=f"{header[0][:80]!r}: {' and '.join(others)}",
            expected=f"{_SEPARATORS[delimiter]}: .csv is read with commas, .tsv with TABs",
            do="rename it to .tsv, or write it again as .csv",
        )


def _unknown_folder(path: Path) -> DataError:
    return DataError(
        f"{path} is a folder, and no file of it is named",
        given=", ".join(sorted(file.name for file in path.iterdir())[:_MOST_NAMED]) or "nothing in it",
        expected="a file, or a folder and in `splits` the files in it",
        do="set `splits: {train: FILE, test: FILE}` of this task in params.yaml, or name a file as `data`",
    )


def _not_an_object(place: str, given: str) -> DataError:
    return DataError(
        f"{place}: not a JSON object",
        given=given,
        expected='one JSON object on each line, like {"text": "…", "label": "…"}',
        do="write one object per line (an array becomes lines with `jq -c '.[]' OLD > NEW`)",
    )


def _not_separated(place: str, given: str) -> DataError:
    return DataError(
        f"{place}: the columns do not fit",
        given=given,
        expected="a header, and as many columns in each row; double quotes round a field with a separator in it",
        do="mend the quotes or the separators near that line",
    )
