"""JSON Lines and CSV: lines in, records out that have the fields that are wanted, each with its place."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson

from clozeline.errors import DataError
from clozeline.records.fields import Fields, check_fields
from clozeline.records.json_values import parsed

_MOST_FIELD_CHARACTERS = 32_000_000
_SEPARATORS: Mapping[str, str] = MappingProxyType(
    {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}
)

PlacedRecord = tuple[str, dict[str, Any]]
"""Where it stands, for messages; and its values by field. There are millions of them: no class."""


def json_records(lines: Iterable[str], file: str, fields: Fields, first_line: int = 1) -> Iterator[PlacedRecord]:
    """One JSON object on each line; blank lines are passed over.

    Raises:
        DataError: a line is no JSON object, or has other fields.
    """
    names = (*fields.values(),)
    records_before = False
    for number, line in enumerate(lines, start=first_line):
        if line.strip():
            place = f"{file}, line {number}"
            try:
                values = orjson.loads(line)
            except orjson.JSONDecodeError:
                values = _parsed(line, place, fields)
            if not isinstance(values, dict):
                raise _not_an_object(place, f"{type(values).__name__}: {line.strip()[:80]}", fields)
            for name in names:
                if name not in values:
                    check_fields(values, fields, place, records_before=records_before)
            yield place, values
            records_before = True


def _parsed(line: str, place: str, fields: Fields) -> Any:
    try:
        return parsed(line)
    except ValueError as error:
        raise _not_an_object(place, f"{line.strip()[:80]} ({error})", fields) from error


def separated_records(lines: Iterable[str], file: str, fields: Fields, *, delimiter: str) -> Iterator[PlacedRecord]:
    """CSV with a header; quoted fields may hold line ends and separators (RFC 4180). Blank lines, which may hold
    separators, are passed over.

    Raises:
        DataError: the quotes do not fit, a row is not as wide as the header, or the header has other fields.
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
                raise _not_as_wide(f"{file}, line {rows.line_num}", row, header)
    except csv.Error as error:
        raise DataError(
            f"{file}, line {rows.line_num}: not CSV",
            given=str(error),
            expected='fields with a separator between, in double quotes where they hold one ("" for a quote itself)',
            do="mend the quotes near that line (an unclosed one reaches to the end of the file)",
        ) from error


def _check_separator(header: Sequence[str], delimiter: str, fields: Fields, place: str) -> None:
    if len(header) != 1 or header[0] in fields.values():
        return
    found = next((sign for sign in _SEPARATORS if sign != delimiter and sign in header[0]), None)
    if found:
        raise DataError(
            f"{place}: the fields are separated by {_SEPARATORS[found]}",
            given=header[0][:160],
            expected=f"fields with {_SEPARATORS[delimiter]} between",
            do=f"write the file again with {_SEPARATORS[delimiter]}, or name it .csv for commas, .tsv for tabs",
        )


def _not_as_wide(place: str, row: Sequence[str], header: Sequence[str]) -> DataError:
    return DataError(
        f"{place}: {len(row)} columns under a header of {len(header)}",
        given=f"{row}"[:160],
        expected=f"columns: {', '.join(header)}",
        do="put double quotes round fields that hold a separator, or mend the row",
    )


def _not_an_object(place: str, given: str, fields: Fields) -> DataError:
    example = ", ".join(f'"{name}": …' for name in fields.values())
    return DataError(
        f"{place}: not a JSON object",
        given=given,
        expected=f"one JSON object on each line, like {{{example}}}",
        do="write one object per line (an array becomes lines with `jq -c '.[]' OLD > NEW`)",
    )
