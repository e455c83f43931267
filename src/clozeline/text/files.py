"""A file or a folder of files as a source; the format is told by the name, or by the first line where it does not."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from clozeline.errors import DataError
from clozeline.params import SourceParams
from clozeline.records.formats import PARQUET_SUFFIXES, format_of, read_parquet
from clozeline.records.meter import Meter
from clozeline.records.streams import read_blocks, read_lines
from clozeline.text.documents import RawUnit, Source
from clozeline.text.from_records import TextFields, documents_of
from clozeline.text.line_formats import BY_SUFFIX, JsonBlock, LineSettings, read_json_lines, sniff

_LEFT_OUT_BY = "`source.pattern`"


def open_files(path: Path, params: SourceParams) -> Source:
    """Open one file, or every file below a folder that matches `params.pattern`, hidden ones left out.

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
    """The file itself, or the files below a folder in the order of their names."""
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
    """The file's name within the source, so that the label does not depend on where the source lies."""
    return file.name if file == source else file.relative_to(source).as_posix()


def _is_hidden(file: Path) -> bool:
    return any(part.startswith(".") for part in file.parts)


def _some_names(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "") if names else "nothing"


def _units(file: Path, label: str, params: SourceParams, meter: Meter) -> Iterator[RawUnit]:
    fields = TextFields(params.text_field, params.label_field)
    suffix = format_of(file)
    if suffix in PARQUET_SUFFIXES:
        yield from documents_of(read_parquet(file, fields.by_knob, meter), fields, label)
        return
    settings = LineSettings(str(file), label, fields, params.one_document_per)
    reader = BY_SUFFIX.get(suffix)
    if reader is read_json_lines:
        with closing(read_blocks(file, meter, _LEFT_OUT_BY)) as blocks:
            yield from (JsonBlock(block, settings) for block in blocks)
        return
    with closing(read_lines(file, meter, _LEFT_OUT_BY)) as lines:
        if reader:
            yield from reader(lines, settings)
        else:
            sniffed, whole = sniff(lines)
            yield from sniffed(whole, settings)
