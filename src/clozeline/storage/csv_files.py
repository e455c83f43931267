"""CSV tables for plots and reports."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import Field, astuple, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from clozeline.storage.atomic import replacing_file


class Dataclass(Protocol):
    """An instance of any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


RowRecord = TypeVar("RowRecord", bound=Dataclass)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write UTF-8 with a line feed after each row on every system: equal rows give equal bytes."""
    with replacing_file(path) as beside, beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_records(path: Path, kind: type[RowRecord], rows: Iterable[RowRecord]) -> None:
    """Write one column for each field of the dataclass `kind`."""
    write_csv(path, [field.name for field in fields(kind)], (astuple(row) for row in rows))
