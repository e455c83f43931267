"""A file or a folder of files as a source. The name tells the format; otherwise the first line does."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from clozeline.errors import DataError
from clozeline.params import SourceParams
from clozeline.records.files.bad import stop
from clozeline.records.files.formats import PARQUET_SUFFIXES, format_of, read_parquet
from clozeline.records.files.meter import Meter
from clozeline.records.files.streams import read_blocks, read_lines
from clozeline.text.documents import Document, RawUnit, Source
from clozeline.text.from_records import TextFields, documents_of
from clozeline.text.line_formats import JsonBlock, LineReader, LineSettings, read_separated, sniff
from clozeline.text.matching import label_of, matching_files

_LEFT_OUT_BY = "`source.pattern`"


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file to read; its name may tell more than its path."""

    path: Path
    name: str
    label: str
    """Label of its texts if the records have none."""
    quarantines: bool = False
    """Whether a bad record is set aside, instead of stopping the reading."""


def open_files(path: Path, params: SourceParams) -> Source:
    """Open one file, or every file below a folder that matches `params.pattern` and is not hidden.

    Raises:
        DataError: no file matches.
    """
    named = [(file, label_of(file, path)) for file in matching_files(path, params.pattern)]
    return read_files([RawFile(file, name, name) for file, name in named], params)


def read_files(files: Sequence[RawFile], params: SourceParams) -> Source:
    meter, shapes = Meter(), Counter[str]()
    return Source(
        units=(unit for file in files for unit in _units(file, params, meter, shapes)),
        total_bytes=total_bytes_of(files),
        meter=meter,
        shapes=shapes,
    )


def total_bytes_of(files: Sequence[RawFile]) -> int:
    return sum(file.path.stat().st_size for file in files)


def _units(file: RawFile, params: SourceParams, meter: Meter, shapes: Counter[str]) -> Iterator[RawUnit]:
    fields = TextFields(params.text_field, params.label_field)
    settings = LineSettings(str(file.path), file.label, fields, params.one_document_per, file.quarantines, shapes)
    return _FORMATS.get(format_of(Path(file.name)), _in_lines)(file.path, settings, meter)


def _in_rows(file: Path, settings: LineSettings, meter: Meter) -> Iterator[RawUnit]:
    bad: list[DataError] = []
    rows = read_parquet(file, settings.fields.by_knob, meter)
    yield from documents_of(rows, settings.fields, settings.label, bad.append if settings.quarantines else stop)
    yield from (Document.in_place_of(error, settings.label) for error in bad)


def _in_blocks(file: Path, settings: LineSettings, meter: Meter) -> Iterator[RawUnit]:
    with closing(read_blocks(file, meter, _LEFT_OUT_BY)) as blocks:
        yield from (JsonBlock(block, settings) for block in blocks)


def _in_lines(file: Path, settings: LineSettings, meter: Meter, reader: LineReader | None = None) -> Iterator[RawUnit]:
    """Yield the documents of a file read line by line; without a reader, the first line decides the format."""
    bad: list[DataError] = []
    on_bad = bad.append if settings.quarantines else stop
    with closing(read_lines(file, meter, _LEFT_OUT_BY, on_bad)) as lines:
        chosen, whole = (reader, lines) if reader else sniff(lines)
        yield from chosen(whole, settings)
    yield from (Document.in_place_of(error, settings.label) for error in bad)


_FORMATS: Mapping[str, Callable[[Path, LineSettings, Meter], Iterator[RawUnit]]] = MappingProxyType(
    {
        **dict.fromkeys(PARQUET_SUFFIXES, _in_rows),
        **dict.fromkeys((".jsonl", ".ndjson", ".json"), _in_blocks),
        ".csv": partial(_in_lines, reader=partial(read_separated, delimiter=",")),
        ".tsv": partial(_in_lines, reader=partial(read_separated, delimiter="\t")),
    }
)
"""Reader of each format, by suffix."""
