"""Labelled texts as they are on disk: Parquet, JSON Lines, CSV or TSV, by the file's name."""

import csv
import difflib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.errors import DataError

_MOST_FIELD_CHARACTERS = 32_000_000


@dataclass(frozen=True, slots=True)
class Labelled:
    """One record; a text or a label that it does not have is empty."""

    text: str
    label: str


@dataclass(frozen=True)
class _Columns:
    """Where text and label are, and the file that messages name."""

    path: Path
    text: str
    label: str


Reader = Callable[[_Columns], Iterator[Labelled]]


def read_labelled(path: Path, *, text_field: str, label_field: str) -> Iterator[Labelled]:
    """Read the records of `path` in order. A label may be a string, a whole number or true/false.

    Raises:
        DataError: the file is missing, of an unknown kind or damaged, or a record has other fields; with its line.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{path} is of a kind that cannot be read",
            given=path.suffix or "no suffix",
            expected=f"one of: {', '.join(READERS)}",
            do="name the file for what it holds, or convert it",
        )
    if not path.is_file():
        raise DataError(
            f"there is no file {path}",
            given=str(path),
            expected="a file of labelled texts",
            do="correct `data` of this task in params.yaml",
        )
    yield from reader(_Columns(path, text_field, label_field))


def _read_parquet(columns: _Columns) -> Iterator[Labelled]:
    try:
        with pq.ParquetFile(columns.path) as file:
            _check_fields(file.schema_arrow.names, columns, columns.path)
            row = 0
            for batch in file.iter_batches(columns=[columns.text, columns.label]):
                for record in batch.to_pylist():
                    row += 1
                    yield _labelled(record, columns, f"{columns.path}, row {row}")
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{columns.path} cannot be read", given=str(error), expected="a Parquet file", do="write it again"
        ) from error


def _read_json_lines(columns: _Columns) -> Iterator[Labelled]:
    for number, line in enumerate(_lines(columns.path), start=1):
        if not line.strip():
            continue
        place = f"{columns.path}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise _not_an_object(place, f"{error}: {line.strip()[:80]}") from error
        if not isinstance(record, dict):
            raise _not_an_object(place, line.strip()[:80])
        _check_fields(record, columns, place)
        yield _labelled(record, columns, place)


def _read_separated(columns: _Columns, *, delimiter: str) -> Iterator[Labelled]:
    csv.field_size_limit(_MOST_FIELD_CHARACTERS)
    rows = csv.reader(_lines(columns.path), delimiter=delimiter, strict=True)
    try:
        header = next(rows, [])
        _check_fields(header, columns, f"{columns.path}, line 1")
        for row in rows:
            if not row:
                continue
            place = f"{columns.path}, line {rows.line_num}"
            if len(row) != len(header):
                raise _not_separated(place, f"{len(row)} columns under a header of {len(header)}")
            yield _labelled(dict(zip(header, row, strict=True)), columns, place)
    except csv.Error as error:
        raise _not_separated(f"{columns.path}, line {rows.line_num}", str(error)) from error


READERS: Mapping[str, Reader] = MappingProxyType(
    {
        ".parquet": _read_parquet,
        ".jsonl": _read_json_lines,
        ".ndjson": _read_json_lines,
        ".csv": partial(_read_separated, delimiter=","),
        ".tsv": partial(_read_separated, delimiter="\t"),
    }
)


def _lines(path: Path) -> Iterator[str]:
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


def _labelled(record: Mapping[str, Any], columns: _Columns, place: str) -> Labelled:
    text, label = record[columns.text], record[columns.label]
    if not isinstance(text, str | None):
        raise _not_a(place, columns.text, text, "a string")
    if not isinstance(label, str | int | None):
        raise _not_a(place, columns.label, label, "one label: a string, a whole number or true/false")
    return Labelled(text or "", "" if label is None else str(label))


def _check_fields(present: Collection[str], columns: _Columns, place: object) -> None:
    for key, name in (("text_field", columns.text), ("label_field", columns.label)):
        if name not in present:
            near = difflib.get_close_matches(name, present, n=1)
            raise DataError(
                f"{place}: there is no field `{name}`",
                given=f"fields: {', '.join(present) or 'none'}",
                expected=f"a field `{name}` (`{key}` of this task)",
                do=f"set `{key}` to {near[0] if near else 'one of these fields'} in params.yaml",
            )


def _not_a(place: str, field: str, given: object, expected: str) -> DataError:
    return DataError(
        f"{place}: field `{field}` cannot be used",
        given=f"{type(given).__name__}: {str(given)[:80]}",
        expected=expected,
        do="correct the record, or name another field in params.yaml",
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
