"""Texts in the shapes that MLflow's clients send: dataframes by columns or by rows, instances, and plain inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any

import orjson
from pydantic import Discriminator, Tag

from clozeline.serving.errors import ApiError, problem
from clozeline.serving.protocols.fields import NUMBER_TAG, TEXT_TAG, RequestBody, checked_texts

TEXT_COLUMN = "text"
_Names = tuple[str, str]


def _name_kind(given: object) -> str | None:
    return {str: TEXT_TAG, int: NUMBER_TAG}.get(type(given))


_ColumnName = Annotated[
    Annotated[str, Tag(TEXT_TAG)] | Annotated[int, Tag(NUMBER_TAG)],
    Discriminator(_name_kind, custom_error_type="name_type", custom_error_message="a name, or a number"),
]


class DataframeSplit(RequestBody):
    columns: list[_ColumnName]
    data: list[list[Any]]
    index: list[Any] | None = None

    def records(self) -> list[dict[str, Any]]:
        names = [str(name) for name in self.columns]
        return [dict(zip_longest(names, row[: len(names)])) for row in self.data]


@dataclass(frozen=True, slots=True)
class Sent:
    """What came, and in which shape."""

    shape: str
    given: Any

    def texts(self) -> list[str]:
        """A text for each row.

        Raises:
            ApiError: 422, a row is no text, or it is not clear which column holds the texts.
        """
        rows = self._rows()
        if isinstance(rows, dict):
            rows = rows.get(_text_column(rows), None)
        return checked_texts(_column(rows) if isinstance(rows, list) else [rows], self.shape)

    def pairs(self, names: _Names) -> list[tuple[str, str]]:
        """Two texts for each row: its columns of these names, or JSON with them, as registry/served_model.py takes it.

        Raises:
            ApiError: 422, a row has no text, has other columns, or is no such JSON.
        """
        rows = self._rows()
        if isinstance(rows, dict):
            rows = _turned(rows)
        records = [_record(row) for row in (rows if isinstance(rows, list) else [rows])]
        for number, record in enumerate(records):
            if record is None or not set(names) <= set(record):
                raise _no_pair(f"{self.shape}[{number}]", record, names)
        columns = ([record[name] for record in records if record] for name in names)
        first, second = (checked_texts(column, self.shape) for column in columns)
        return list(zip(first, second, strict=True))

    def _rows(self) -> Any:
        return self.given.records() if isinstance(self.given, DataframeSplit) else self.given


def _turned(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of columns; of each column a list, or of a single row its values."""
    listed = {name: value if isinstance(value, list) else [value] for name, value in columns.items()}
    return [dict(zip(listed, row, strict=True)) for row in zip_longest(*listed.values())]


def _record(row: Any) -> dict[str, Any] | None:
    """A row with its columns; None: it is none, and no JSON of one."""
    if isinstance(row, list) and len(row) == 1:
        row = row[0]
    if isinstance(row, str):
        try:
            row = orjson.loads(row)
        except orjson.JSONDecodeError:
            return None
    return row if isinstance(row, dict) else None


def _no_pair(place: str, record: dict[str, Any] | None, names: _Names) -> ApiError:
    first, second = names
    return problem(
        422,
        "no_pair",
        f"{place} has not the two texts that this model reads",
        given="no columns" if record is None else f"columns: {', '.join(record) or 'none'}",
        expected=f"`{first}` and `{second}`",
        do=f'send both as columns, or each row as JSON: {{"{first}": "…", "{second}": "…"}}',
        param=place,
    )


def _column(rows: list[Any]) -> list[Any]:
    if rows and isinstance(rows[0], dict):
        name = _text_column(rows[0])
        return [row.get(name) if isinstance(row, dict) else row for row in rows]
    return [row[0] if isinstance(row, list) and len(row) == 1 else row for row in rows]


def _text_column(names: Sequence[str] | dict[str, Any]) -> str:
    if len(names) == 1:
        return next(iter(names))
    if TEXT_COLUMN in names:
        return TEXT_COLUMN
    raise problem(
        422,
        "no_text_column",
        "it is not clear which column holds the texts",
        given=f"columns: {', '.join(names) or 'none'}",
        expected=f"one column, or one called `{TEXT_COLUMN}`",
        do=f"call the column of texts `{TEXT_COLUMN}`",
    )
