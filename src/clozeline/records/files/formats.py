"""Table of file formats: suffix → reader."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.errors import DataError
from clozeline.records.files.fields import Fields, check_fields
from clozeline.records.files.meter import Meter
from clozeline.records.files.placed import PlacedRecord, json_records, separated_records
from clozeline.records.files.streams import lines_of

_COMPRESSION_SUFFIXES = {".gz", ".bz2", ".zst", ".zstd"}
FormatReader = Callable[[Path, Fields, Meter], Iterator[PlacedRecord]]
_PARQUET_ROWS = 1_000
PARQUET_SUFFIXES = (".parquet", ".pq")


def format_of(path: Path) -> str:
    """Return the suffix of the format: `.csv` for `posts.CSV.gz`."""
    name = PurePosixPath(path.name.lower())
    return PurePosixPath(name.stem).suffix if name.suffix in _COMPRESSION_SUFFIXES else name.suffix


def read_parquet(
    path: Path, fields: Fields, meter: Meter, start: int = 0, end: int | None = None
) -> Iterator[PlacedRecord]:
    """Read the named columns, with a thousand rows in memory at a time.

    Args:
        start: first byte of the range in which the row groups to read begin.
        end: first byte behind the range; None: the end of the file.

    Raises:
        DataError: the file is damaged, or has no such columns.
    """
    file, size_bytes = str(path), path.stat().st_size
    try:
        with pq.ParquetFile(path) as table:
            check_fields(table.schema_arrow.names, fields, path)
            groups = [table.metadata.row_group(number) for number in range(table.num_row_groups)]
            places = [group.column(0).data_page_offset for group in groups]
            chosen = [number for number, place in enumerate(places) if start <= place and (end is None or place < end)]
            row = sum(group.num_rows for group in groups[: chosen[0]]) if chosen else 0
            columns = [*fields.values()]
            for batch in table.iter_batches(_PARQUET_ROWS, chosen, columns=columns, use_threads=False):
                for values in batch.to_pylist():
                    row += 1
                    yield f"{file}, row {row}", values
                meter.add(size_bytes * len(batch) // table.metadata.num_rows)
    except (pa.ArrowInvalid, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise DataError(
            f"{path}: not a complete Parquet file: {error}",
            do="write or copy the file again; if it is in another format, correct its suffix",
        ) from error


def read_json_lines(path: Path, fields: Fields, meter: Meter) -> Iterator[PlacedRecord]:
    with closing(lines_of(path, meter)) as lines:
        yield from json_records(lines, str(path), fields)


def read_separated(path: Path, fields: Fields, meter: Meter, *, delimiter: str) -> Iterator[PlacedRecord]:
    with closing(lines_of(path, meter)) as lines:
        yield from separated_records(lines, str(path), fields, delimiter=delimiter)


FORMATS: Mapping[str, FormatReader] = MappingProxyType(
    {
        **dict.fromkeys(PARQUET_SUFFIXES, read_parquet),
        ".jsonl": read_json_lines,
        ".ndjson": read_json_lines,
        ".csv": partial(read_separated, delimiter=","),
        ".tsv": partial(read_separated, delimiter="\t"),
    }
)
