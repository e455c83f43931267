"""A file or a folder of files as a source. The name tells the format; otherwise the first line does."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from clozeline.errors import DataError
from clozeline.records.files.bad import stop
from clozeline.records.files.formats import PARQUET_SUFFIXES, format_of, read_parquet
from clozeline.records.files.json_values import whole
from clozeline.records.files.meter import Meter
from clozeline.records.files.streams import compression_of, read_blocks, read_lines
from clozeline.text.documents import Document, RawUnit, Source
from clozeline.text.from_records import TextFields, documents_of
from clozeline.text.line_formats import JsonBlock, LineReader, LineSettings, read_separated, sniff
from clozeline.text.matching import label_of, matching_files
from clozeline.text.raw_files import RawFile, Reading, total_bytes_of

if TYPE_CHECKING:
    from clozeline.params import SourceParams

_LEFT_OUT_BY = "`source.pattern`"


def open_files(path: Path, params: "SourceParams") -> Source:
    """Open one file, or every file below a folder that matches `params.pattern` and is not hidden.

    Raises:
        DataError: no file matches.
    """
    named = [(file, label_of(file, path)) for file in matching_files(path, params.pattern)]
    return read_files([RawFile(file, name, name) for file, name in named], Reading.of(params))


def texts_of(path: Path, params: "SourceParams") -> Iterator[str]:
    """Yield the texts of a file or folder as `preprocess` reads them, without cleaning; empty texts are skipped.

    Raises:
        DataError: the path is missing, or cannot be read as text.
    """
    if not path.exists():
        raise DataError(
            f"{path}: there is no such file or folder",
            given=str(path),
            expected="text: .txt, .jsonl, .csv, .parquet, compressed or not, or a folder of them",
            do="correct the path",
        )
    for unit in open_files(path, params).units:
        yield from (text for document in unit.documents() if (text := str(whole(document.text)).strip()))


def read_files(files: Sequence[RawFile], reading: Reading) -> Source:
    meter, shapes = Meter(), Counter[str]()
    return Source(
        units=(unit for file in files for unit in _units(file, reading, meter, shapes)),
        total_bytes=total_bytes_of(files),
        meter=meter,
        shapes=shapes,
    )


def has_ranges(file: RawFile) -> bool:
    """Return whether a range of the file's bytes can be read: the lines, or the row groups, that begin in it."""
    read = _FORMATS.get(format_of(Path(file.name)))
    return read is _in_rows or (read is _in_blocks and compression_of(file.path) is None)


def _units(file: RawFile, reading: Reading, meter: Meter, shapes: Counter[str]) -> Iterator[RawUnit]:
    fields = TextFields(reading.text_field, reading.label_field)
    settings = LineSettings(str(file.path), file.label, fields, reading.one_document_per, file.quarantines, shapes)
    return _FORMATS.get(format_of(Path(file.name)), _in_lines)(file, settings, meter)


def _in_rows(file: RawFile, settings: LineSettings, meter: Meter) -> Iterator[RawUnit]:
    bad: list[DataError] = []
    rows = read_parquet(file.path, settings.fields.by_knob, meter, file.start, file.end)
    yield from documents_of(rows, settings.fields, settings.label, bad.append if settings.quarantines else stop)
    yield from (Document.in_place_of(error, settings.label) for error in bad)


def _in_blocks(file: RawFile, settings: LineSettings, meter: Meter) -> Iterator[RawUnit]:
    with closing(read_blocks(file.path, meter, _LEFT_OUT_BY, file.start, file.end)) as blocks:
        yield from (JsonBlock(block, settings) for block in blocks)


def _in_lines(
    file: RawFile, settings: LineSettings, meter: Meter, reader: LineReader | None = None
) -> Iterator[RawUnit]:
    """Yield the documents of a file read line by line; without a reader, the first line decides the format."""
    bad: list[DataError] = []
    on_bad = bad.append if settings.quarantines else stop
    with closing(read_lines(file.path, meter, _LEFT_OUT_BY, on_bad)) as lines:
        chosen, whole = (reader, lines) if reader else sniff(lines)
        yield from chosen(whole, settings)
    yield from (Document.in_place_of(error, settings.label) for error in bad)


_FORMATS: Mapping[str, Callable[[RawFile, LineSettings, Meter], Iterator[RawUnit]]] = MappingProxyType(
    {
        **dict.fromkeys(PARQUET_SUFFIXES, _in_rows),
        **dict.fromkeys((".jsonl", ".ndjson", ".json"), _in_blocks),
        ".csv": partial(_in_lines, reader=partial(read_separated, delimiter=",")),
        ".tsv": partial(_in_lines, reader=partial(read_separated, delimiter="\t")),
    }
)
"""Reader of each format, by suffix."""
