"""JSON Lines and CSV: turn lines into records with their location, and check their fields."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson

from clozeline.errors import DataError
from clozeline.records.files.bad import OnBad, stop
from clozeline.records.files.fields import Fields, check_fields
from clozeline.records.files.json_values import parsed

_MOST_FIELD_CHARACTERS = 32_000_000
_SEPARATORS: Mapping[str, str] = MappingProxyType(
    {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}
)

PlacedRecord = tuple[str, dict[str, Any]]
"""Location for messages, and values by field. A plain tuple, because there are millions."""


def json_records(
    lines: Iterable[str],
    file: str,
    fields: Fields,
    first_line: int = 1,
    *,
    keeps_halves: bool = False,
    on_bad: OnBad = stop,
) -> Iterator[PlacedRecord]:
    """Yield one JSON object per line; skip blank lines. `keeps_halves`: as for `parsed`.

    Raises:
        DataError: a line is not a JSON object, or lacks a field; unless `on_bad` takes the error.
    """
    names = (*fields.values(),)
    records_before = False
    for number, line in enumerate(lines, start=first_line):
        if line.strip():
            place = f"{file}, line {number}"
            try:
                values = _object(line, place, fields, keeps_halves=keeps_halves)
                for name in names:
                    if name not in values:
                        check_fields(values, fields, place, records_before=records_before)
            except DataError as error:
                on_bad(error)
                continue
            yield place, values
            records_before = True


def _object(line: str, place: str, fields: Fields, *, keeps_halves: bool) -> dict[str, Any]:
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            values = parsed(line, keeps_halves=keeps_halves)
        except ValueError as error:
            raise _not_an_object(place, f"{line.strip()[:80]} ({error})", fields) from error
    if not isinstance(values, dict):
        raise _not_an_object(place, f"{type(values).__name__}: {line.strip()[:80]}", fields)
    return values


def separated_records(
    lines: Iterable[str], file: str, fields: Fields, *, delimiter: str, on_bad: OnBad = stop
) -> Iterator[PlacedRecord]:
    """Yield rows of CSV with a header; quoted fields may hold line ends and separators (RFC 4180). Rows without any
    content are skipped.

    Raises:
        DataError: unbalanced quotes, a missing field, or a row with another number of columns than the header, unless
            `on_bad` takes the error of such a row.
    """
    csv.field_size_limit(_MOST_FIELD_CHARACTERS)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = next(filter(None, rows), [])
        place = f"{file}, line {max(rows.line_num, 1)}"
        _check_separator(header, delimiter, fields, place)
        check_fields(header, fields, place)
        for row in rows:
            if len(row) == len(header):
                yield f"{file}, line {rows.line_num}", dict(zip(header, row, strict=True))
            elif any(map(str.strip, row)):
                on_bad(_not_as_wide(f"{file}, line {rows.line_num}", row, header))
    except csv.Error as error:
        raise DataError(
            f'{file}, line {rows.line_num}: not CSV with double quotes, a quote in a field as "": {error}',
            do="fix the quotes near that line (an unclosed quote reaches to the end of the file)",
        ) from error


def _check_separator(header: Sequence[str], delimiter: str, fields: Fields, place: str) -> None:
    if len(header) != 1 or header[0] in fields.values():
        return
    found = next((sign for sign in _SEPARATORS if sign != delimiter and sign in header[0]), None)
    if found:
        raise DataError(
            f"{place}: the fields are separated by {_SEPARATORS[found]}, not {_SEPARATORS[delimiter]}:"
            f" {header[0][:160]}",
            do=f"save the file with {_SEPARATORS[delimiter]}, or rename it: .csv for commas, .tsv for tabs",
        )


def _not_as_wide(place: str, row: Sequence[str], header: Sequence[str]) -> DataError:
    return DataError(
        f"{place}: {len(row)} columns, but the header has {len(header)}",
        given=f"{row}"[:160],
        expected=f"columns: {', '.join(header)}",
        do="put double quotes around fields that hold a separator, or fix the row",
    )


def _not_an_object(place: str, given: str, fields: Fields) -> DataError:
    example = ", ".join(f'"{name}": …' for name in fields.values())
    return DataError(
        f"{place}: not a JSON object",
        given=given,
        expected=f"one JSON object per line, like {{{example}}}",
        do="write one object per line (an array becomes lines with `jq -c '.[]' OLD > NEW`)",
    )
