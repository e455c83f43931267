"""Tab-separated files without a header, as the STS tasks have them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from clozeline.errors import DataError
from clozeline.records.fields import Fields, check_fields
from clozeline.records.streams import lines_of
from clozeline.tasks.records import Reader, Record

_SUFFIXES = (".tsv", ".txt")


def readers(columns: Sequence[str] | None) -> Mapping[str, Reader]:
    """Readers by the file's suffix; without `columns` there are none, and tables have headers."""
    return {} if columns is None else dict.fromkeys(_SUFFIXES, partial(_read, columns=columns))


def _read(path: Path, fields: Fields, *, columns: Sequence[str]) -> Iterator[Record]:
    """Columns beyond those named are passed over. Quotes are text: the STS files have lone ones."""
    check_fields(columns, fields, "`columns` of this task")
    for number, line in enumerate(lines_of(path), start=1):
        if not line.strip():
            continue
        values = line.rstrip("\r\n").split("\t")
        if len(values) < len(columns):
            raise DataError(
                f"{path}, line {number}: too few columns",
                given=f"{len(values)}: {line.strip()[:80]!r}",
                expected=f"{len(columns)} or more, between TABs: {', '.join(columns)}",
                do="mend the line, or correct `columns` of this task in params.yaml",
            )
        yield Record(dict(zip(columns, map(str.strip, values), strict=False)), f"{path}, line {number}")
