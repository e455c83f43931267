"""Texts in the shapes that MLflow's clients send: dataframes by columns or by rows, instances, and plain inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any

import orjson
from pydantic import Discriminator, Field, Tag

from clozeline.serving.errors import ApiError, problem
from clozeline.serving.protocols.fields import (
    MAX_TEXTS,
    NUMBER_TAG,
    TEXT_TAG,
    WHOLE,
    ModelName,
    RequestBody,
    TopK,
    Truncate,
    checked_texts,
)

TEXT_COLUMN = "text"
Records = tuple[list[dict[str, Any]], dict[str, str]]
"""A record for each text, and headers that name the model."""
_Names = tuple[str, str]


def _name_kind(given: object) -> str | None:
    return {str: TEXT_TAG, int: NUMBER_TAG, float: NUMBER_TAG}.get(type(given))


_ColumnName = Annotated[
    Annotated[str, Tag(TEXT_TAG)] | Annotated[int, WHOLE, Tag(NUMBER_TAG)],
    Discriminator(_name_kind, custom_error_type="name_type", custom_error_message="a name, or a number"),
]


class Params(RequestBody):
    top_k: Annotated[
        TopK,
        Field(description="Number of candidates for each mask, labels for each text, or answers to each question."),
    ] = 5
    truncate: Truncate = False
    model: ModelName = None


class DataframeSplit(RequestBody):
    columns: Annotated[list[_ColumnName], Field(min_length=1)]
    data: Annotated[list[list[Any]], Field(min_length=1, max_length=MAX_TEXTS)]
    index: list[Any] | None = None

    def records(self) -> list[dict[str, Any]]:
        names = [str(name) for name in self.columns]
        return [dict(zip_longest(names, row[: len(names)])) for row in self.data]


@dataclass(frozen=True, slots=True)
class Sent:
    """Content of a request, and the name of its shape."""

    shape: str
    given: Any

    def texts(self) -> list[str]:
        """Return the text of each row.

        Raises:
            ApiError: 422, a row is not a text, or it is not clear which column holds the texts.
        """
        rows = self._rows()
        if isinstance(rows, dict):
            rows = rows.get(_text_column(rows), None)
        return checked_texts(_column(rows) if isinstance(rows, list) else [rows], self.shape)

    def pairs(self, names: _Names) -> list[tuple[str, str]]:
        """Return two texts for each row: the columns `names`, or JSON with these keys, as in registry/served_model.py.

        Raises:
            ApiError: 422, a row lacks one of the columns, has no text in it, or is not such JSON.
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
    """Return the rows of `columns`. Each column is a list, or the value of a single row."""
    listed = {name: value if isinstance(value, list) else [value] for name, value in columns.items()}
    return [dict(zip(listed, row, strict=True)) for row in zip_longest(*listed.values())]


def _record(row: Any) -> dict[str, Any] | None:
    """Return a row as a dict, parsed from JSON if it is a string; None if it is neither."""
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
        f"`{place}` does not hold the two texts that the model reads",
        given="no columns" if record is None else f"columns: {', '.join(record) or 'none'}",
        expected=f"`{first}` and `{second}`",
        do=f'send both texts as columns, or each row as JSON: {{"{first}": "…", "{second}": "…"}}',
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
        "it is unclear which column holds the texts",
        given=f"columns: {', '.join(names) or 'none'}",
        expected=f"one column, or a column named `{TEXT_COLUMN}`",
        do=f"name the column with the texts `{TEXT_COLUMN}`",
    )
