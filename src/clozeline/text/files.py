"""A file or a folder of files as a source. The name tells the format; otherwise the first line does."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from types import MappingProxyType

from clozeline.errors import DataError
from clozeline.params import SourceParams
from clozeline.records.files.formats import PARQUET_SUFFIXES, format_of, read_parquet
from clozeline.records.files.meter import Meter
from clozeline.records.files.streams import read_blocks, read_lines
from clozeline.text.documents import RawUnit, Source
from clozeline.text.from_records import TextFields, documents_of
from clozeline.text.line_formats import JsonBlock, LineReader, LineSettings, read_separated, sniff

_LEFT_OUT_BY = "`source.pattern`"


def open_files(path: Path, params: SourceParams) -> Source:
    """Open one file, or every file below a folder that matches `params.pattern` and is not hidden.

    Raises:
        DataError: no file matches.
    """
    files = matching_files(path, params.pattern)
    meter = Meter()
    return Source(
        units=(unit for file in files for unit in _units(file, label_of(file, path), params, meter)),
        total_bytes=sum(file.stat().st_size for file in files),
        meter=meter,
    )


def matching_files(path: Path, pattern: str) -> list[Path]:
    """Return the file itself, or the matching files below a folder in the order of their names."""
    if path.is_file():
        return [path]
    files = [file for file in path.glob(pattern) if file.is_file() and not _is_hidden(file.relative_to(path))]
    if not files:
        raise DataError(
            f"{path}: no file matches",
            given=f"pattern {pattern} in a folder that holds {_some_names(path)}",
            expected="at least one file",
            do="correct `source.path` or `source.pattern`",
        )
    return sorted(files, key=lambda file: file.relative_to(path).as_posix())


def label_of(file: Path, source: Path) -> str:
    """Return the file's name within the source, so that the label does not depend on the location of the source."""
    return file.name if file == source else file.relative_to(source).as_posix()


def _is_hidden(file: Path) -> bool:
    return any(part.startswith(".") for part in file.parts)


def _some_names(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "") if names else "nothing"


def _units(file: Path, label: str, params: SourceParams, meter: Meter) -> Iterator[RawUnit]:
    fields = TextFields(params.text_field, params.label_field)
    settings = LineSettings(str(file), label, fields, params.one_document_per)
    return _FORMATS.get(format_of(file), _in_lines)(file, settings, meter)


def _in_rows(file: Path, settings: LineSettings, meter: Meter) -> Iterator[RawUnit]:
    rows = read_parquet(file, settings.fields.by_knob, meter)
    return documents_of(rows, settings.fields, settings.label)


def _in_blocks(file: Path, settings: LineSettings, meter: Meter) -> Iterator[RawUnit]:
    with closing(read_blocks(file, meter, _LEFT_OUT_BY)) as blocks:
        yield from (JsonBlock(block, settings) for block in blocks)


def _in_lines(file: Path, settings: LineSettings, meter: Meter, reader: LineReader | None = None) -> Iterator[RawUnit]:
    """Yield the documents of a file read line by line; without a reader, the first line decides the format."""
    with closing(read_lines(file, meter, _LEFT_OUT_BY)) as lines:
        chosen, whole = (reader, lines) if reader else sniff(lines)
        yield from chosen(whole, settings)


_FORMATS: Mapping[str, Callable[[Path, LineSettings, Meter], Iterator[RawUnit]]] = MappingProxyType(
    {
        **dict.fromkeys(PARQUET_SUFFIXES, _in_rows),
        **dict.fromkeys((".jsonl", ".ndjson", ".json"), _in_blocks),
        ".csv": partial(_in_lines, reader=partial(read_separated, delimiter=",")),
        ".tsv": partial(_in_lines, reader=partial(read_separated, delimiter="\t")),
    }
)
"""Reader of each format, by suffix."""
