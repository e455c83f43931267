"""Reader of tab-separated files without a header, the format of the STS tasks."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from clozeline.errors import DataError
from clozeline.records.files.fields import Fields, check_fields
from clozeline.records.files.streams import lines_of
from clozeline.tasks.records import Reader, Record

_SUFFIXES = (".tsv", ".txt")


def readers(columns: Sequence[str] | None) -> Mapping[str, Reader]:
    """Return the readers keyed by file suffix; none without `columns`, because tables then have headers."""
    return {} if columns is None else dict.fromkeys(_SUFFIXES, partial(_read, columns=columns))


def _read(path: Path, fields: Fields, *, columns: Sequence[str]) -> Iterator[Record]:
    """Read the named columns and ignore further ones. Quotes are text, because STS files contain unpaired quotes."""
    check_fields(columns, fields, "`columns` of this task")
    for number, line in enumerate(lines_of(path), start=1):
        if not line.strip():
            continue
        values = line.rstrip("\r\n").split("\t")
        if len(values) < len(columns):
            raise DataError(
                f"{path}, line {number}: {len(values)} columns by tabs, not {', '.join(columns)}: {line.strip()[:80]}",
                do="correct the line, or correct `columns` of this task",
            )
        yield Record(dict(zip(columns, map(str.strip, values), strict=False)), f"{path}, line {number}")
