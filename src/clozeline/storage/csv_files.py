"""Tables for plots and reports, as CSV."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from clozeline.storage.atomic import replacing_file

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RowRecord = TypeVar("RowRecord", bound="DataclassInstance")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """UTF-8, and a line feed after each row wherever it is written: the same rows are the same bytes."""
    with replacing_file(path) as beside, beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_records(path: Path, kind: type[RowRecord], rows: Iterable[RowRecord]) -> None:
    """As `write_csv`: a column for each field of `kind`."""
    write_csv(path, [field.name for field in fields(kind)], (astuple(row) for row in rows))
