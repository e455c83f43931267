"""Texts in the shapes that MLflow's clients send: dataframes by columns or by rows, instances, and plain inputs."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from clozeline.serving.errors import problem
from clozeline.serving.schemas import RequestBody, checked_texts

TEXT_COLUMN = "text"


class DataframeSplit(RequestBody):
    columns: list[str | int]
    data: list[list[Any]]
    index: list[Any] | None = None

    def records(self) -> list[dict[str, Any]]:
        names = [str(name) for name in self.columns]
        return [dict(zip_longest(names, row[: len(names)])) for row in self.data]


def texts_in(shape: str, given: Any) -> list[str]:
    """The texts of a request of this shape.

    Raises:
        RequestValidationError: naming the row that is no text.
        ApiError: 422, it is not clear which column holds the texts.
    """
    rows = given.records() if isinstance(given, DataframeSplit) else given
    if isinstance(rows, dict):
        rows = rows.get(_text_column(rows), None)
    return checked_texts(_column(rows) if isinstance(rows, list) else [rows], shape)


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
