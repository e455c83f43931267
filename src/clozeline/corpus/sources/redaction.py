"""Files of a source without the forgotten texts, in the format and the compression that they had."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.records.reading.files import PARQUET_SUFFIXES, format_of
from clozeline.records.reading.streams import compression_of, is_json_object, lines_of, parsed
from clozeline.records.snapshot import Forgotten
from clozeline.system.errors import DataError

_BLOCK_CHARACTERS: Final = 1 << 22
_ROWS: Final = 1_000
Pieces = Iterator[tuple[bool, str]]
"""The parts of a text file: whether a forgotten text was in it, and what is left."""


def redact(path: Path, name: str, forgotten: Forgotten, beside: Path) -> bool:
    """Write the file `path`, called `name` in its source, without the forgotten texts to `beside`.

    A text is cut out of a longer one; a record or row that consists of it is left out.

    Returns:
        False, and nothing is written, if it has none of them, or is not text in a known format.
    """
    if not forgotten:
        return False
    try:
        if format_of(Path(name)) in PARQUET_SUFFIXES:
            return _redact_parquet(path, forgotten, beside)
        return _redact_text(path, _FORMATS.get(format_of(Path(name)), _in_any), forgotten, beside)
    except (DataError, pa.ArrowInvalid, csv.Error):  # preprocess reports what cannot be read
        return False


def redacted_line(line: bytes, forgotten: Forgotten) -> bytes:
    """Return a record of JSON Lines without the forgotten texts; empty if one of its texts was such a text."""
    ((_, left),) = _in_json([line.decode()], forgotten)
    return left.encode()


def _redact_text(path: Path, pieces: Callable[..., Pieces], forgotten: Forgotten, beside: Path) -> bool:
    if not any(is_cut for is_cut, _ in pieces(lines_of(path), forgotten)):
        return False
    with ExitStack() as opened:
        sink = opened.enter_context(pa.OSFile(str(beside), "wb"))
        compression = compression_of(path)
        stream = opened.enter_context(pa.CompressedOutputStream(sink, compression)) if compression else sink
        for _, left in pieces(lines_of(path), forgotten):
            stream.write(left.encode())
    return True


def _in_any(lines: Iterator[str], forgotten: Forgotten) -> Pieces:
    """Cut records if the first line is one, else plain text."""
    head = next((line for line in lines if line.strip()), "")
    return (_in_json if is_json_object(head) else _in_text)(chain([head], lines), forgotten)


def _in_text(lines: Iterable[str], forgotten: Forgotten) -> Pieces:
    waiting = ""
    for block in _blocks(lines):
        before = waiting + block
        left = forgotten.cut_out(before)
        rest = forgotten.start_of_rest(left)
        yield left != before, left[:rest]
        waiting = left[rest:]
    yield False, waiting


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines in blocks, so that memory does not grow with the file."""
    waiting: list[str] = []
    size = 0
    for line in lines:
        waiting.append(line)
        size += len(line)
        if size >= _BLOCK_CHARACTERS:
            yield "".join(waiting)
            waiting, size = [], 0
    yield "".join(waiting)


def _in_json(lines: Iterable[str], forgotten: Forgotten) -> Pieces:
    for line in lines:
        try:
            record = parsed(line) if line.strip() else None
        except ValueError:
            record = None
        left = _cut(record, forgotten)
        if left == record:
            yield False, line
        else:
            yield True, "" if _has_lost_a_text(record, left) else json.dumps(left, ensure_ascii=line.isascii()) + "\n"


def _in_rows(lines: Iterable[str], forgotten: Forgotten, *, delimiter: str) -> Pieces:
    for row in csv.reader(lines, delimiter=delimiter):
        left = [forgotten.cut(cell) for cell in row]
        yield left != row, "" if _has_lost_a_text(row, left) else _row(left, delimiter)


def _row(cells: Sequence[str], delimiter: str) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _redact_parquet(path: Path, forgotten: Forgotten, beside: Path) -> bool:
    with pq.ParquetFile(path) as table:
        batches = partial(table.iter_batches, _ROWS, use_threads=False)
        if not any(_cut(batch.to_pylist(), forgotten) != batch.to_pylist() for batch in batches()):
            return False
        with pq.ParquetWriter(beside, table.schema_arrow) as file:
            for batch in batches():
                rows = [(row, _cut(row, forgotten)) for row in batch.to_pylist()]
                left = [cut for row, cut in rows if not _has_lost_a_text(row, cut)]
                file.write_table(pa.Table.from_pylist(left, schema=table.schema_arrow))
    return True


def _cut(value: Any, forgotten: Forgotten) -> Any:
    """Cut every string in a value of JSON."""
    match value:
        case str():
            return forgotten.cut(value)
        case list():
            return [_cut(inner, forgotten) for inner in value]
        case dict():
            return {name: _cut(inner, forgotten) for name, inner in value.items()}
    return value


def _has_lost_a_text(before: Any, after: Any) -> bool:
    """Whether a string consisted of a forgotten text."""
    match before:
        case str():
            return bool(before) and not after
        case list():
            return any(map(_has_lost_a_text, before, after))
        case dict():
            return any(map(_has_lost_a_text, before.values(), after.values()))
    return False


_FORMATS: Mapping[str, Callable[..., Pieces]] = MappingProxyType(
    {
        **dict.fromkeys((".jsonl", ".ndjson", ".json"), _in_json),
        ".csv": partial(_in_rows, delimiter=","),
        ".tsv": partial(_in_rows, delimiter="\t"),
    }
)
"""How the text of a format is cut, by suffix; of other files, the first line tells."""
