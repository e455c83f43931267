"""Files of a snapshot by the sha256 of their files, without the forgotten texts.

Content of the earlier snapshot is linked, not copied. A source without files is kept as shards of JSON Lines. Shards of
earlier snapshots keep the records that are still there; records that are new go into new shards. A table that grew by a
few rows therefore changes no earlier shard, in whatever order the source returns its rows. A file without its forgotten
texts keeps its format and its compression.
"""

import csv
import hashlib
import io
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path, PurePath
from secrets import token_hex
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.params.text import SourceParams
from clozeline.records.reading import files, streams
from clozeline.records.snapshot import NOTHING, Earlier, Forgotten, SnapshotFile
from clozeline.system import errors
from clozeline.system.files import link_or_copy, sha256_of

# Suffixes of files whose every line is a record of its own, so that they can be cut between lines.
_JSON_LINES = (".jsonl", ".ndjson")
_BLOCK_BYTES = 1 << 20

# Size of a shard before compression, in bytes.
_SHARD_BYTES = 64_000_000
_KEY_BYTES = 16

_BLOCK_CHARACTERS = 1 << 22
_ROWS = 1_000
# For each part of a text file: whether it held a forgotten text, and the part without it.
Pieces = Iterator[tuple[bool, str]]


class SnapshotStore:
    """Writes the files of a snapshot into its folder."""

    def __init__(self, folder: Path, earlier: Earlier, forgotten: Forgotten = NOTHING) -> None:
        self.earlier = earlier
        self.forgotten = forgotten
        self._folder = folder
        self._is_earlier_clean = earlier.manifest is None or earlier.manifest.forgotten == forgotten.digest
        self._of_size: dict[int, dict[str, SnapshotFile]] = defaultdict(dict)  # earlier files by size, then by sha256
        self._of_name: dict[str, list[SnapshotFile]] = defaultdict(list)  # parts of each earlier file, in order
        for file in earlier.files:
            self._of_size[file.size_bytes][file.sha256] = file
            self._of_name[file.name].append(file)
        # Earlier files of several parts, by their size.
        self._in_parts: dict[int, list[Sequence[SnapshotFile]]] = defaultdict(list)
        for parts in self._of_name.values():
            if len(parts) > 1:
                self._in_parts[_size_of(parts)].append(parts)

    def keep_copy(self, name: str, source: Path) -> tuple[SnapshotFile, ...]:
        """Keep a copy of a source file; content that the earlier snapshot has is not written again.

        A file of JSON Lines that grew at its end keeps its earlier parts, and its new lines become another part: as new
        content the whole file would follow all other files, and its old texts would count as new ones.
        """
        with self.incoming() as redacted:
            return self._keep_parts(name, redacted if redact(source, name, self.forgotten, redacted) else source)

    def _keep_parts(self, name: str, source: Path) -> tuple[SnapshotFile, ...]:
        size_bytes = source.stat().st_size
        known = self._of_size.get(size_bytes, {})
        if known and (same := known.get(sha256_of(source))):
            return (self.keep_earlier(same, name),)
        parts = self._parts_in(source, name, size_bytes)
        num_kept_bytes = _size_of(parts)
        kept = tuple(self.keep_earlier(part, name) for part in parts)
        if parts and num_kept_bytes == size_bytes:
            return kept
        with self.incoming() as beside:
            _copy_from(num_kept_bytes, source, beside)
            return (*kept, self._keep(name, beside))

    def _parts_in(self, source: Path, name: str, size_bytes: int) -> Sequence[SnapshotFile]:
        """Return the parts of an earlier file with which `source` begins; empty if it is no such file.

        That is the file of the same name, or another one in parts that was renamed. New lines must begin on a line of
        their own.
        """
        if PurePath(name).suffix not in _JSON_LINES:
            return ()
        candidates: list[Sequence[SnapshotFile]] = [self._of_name.get(name, ()), *self._in_parts.get(size_bytes, ())]
        for parts in candidates:
            num_bytes = _size_of(parts)
            if 0 < num_bytes <= size_bytes:
                with source.open("rb") as file:
                    is_begun = all(_sha256_of_next(part.size_bytes, file) == part.sha256 for part in parts)
                    if is_begun and (num_bytes == size_bytes or _ends_line(file, num_bytes)):
                        return parts
        return ()

    def keep(self, name: str, beside: Path) -> SnapshotFile:
        """Move a file that `incoming` named to its place."""
        with self.incoming() as redacted:
            if redact(beside, name, self.forgotten, redacted):
                redacted.replace(beside)
        return self._keep(name, beside)

    def _keep(self, name: str, beside: Path) -> SnapshotFile:
        size_bytes, sha256 = beside.stat().st_size, sha256_of(beside)
        same = self._of_size.get(size_bytes, {}).get(sha256)
        if same:
            return self._link(same, name)
        file = SnapshotFile(name=name, sha256=sha256, size_bytes=size_bytes, snapshot=self.earlier.number + 1)
        beside.replace(self._place_of(file))
        return file

    def keep_earlier(self, file: SnapshotFile, name: str) -> SnapshotFile:
        """Keep a file of the earlier snapshot under `name`. A text may have been forgotten since."""
        with self.incoming() as beside:
            if not self._is_earlier_clean and redact(self.earlier.path_of(file), name, self.forgotten, beside):
                left = self._keep(name, beside)
                return file.model_copy(update={"name": name, "sha256": left.sha256, "size_bytes": left.size_bytes})
        return self._link(file, name)

    def _link(self, file: SnapshotFile, name: str) -> SnapshotFile:
        place = self._place_of(file)
        if not place.exists():
            link_or_copy(self.earlier.path_of(file), place)
        return file.model_copy(update={"name": name})

    @contextmanager
    def incoming(self) -> Iterator[Path]:
        """Yield the path of a file to write and then to `keep`."""
        beside = self._folder / f"incoming-{token_hex(4)}"
        try:
            yield beside
        finally:
            beside.unlink(missing_ok=True)

    def _place_of(self, file: SnapshotFile) -> Path:
        place = self._folder / file.object_name
        place.parent.mkdir(parents=True, exist_ok=True)
        return place


def _size_of(parts: Sequence[SnapshotFile]) -> int:
    return sum(part.size_bytes for part in parts)


def _sha256_of_next(num_bytes: int, file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while num_bytes and (block := file.read(min(num_bytes, _BLOCK_BYTES))):
        digest.update(block)
        num_bytes -= len(block)
    return digest.hexdigest()


def _ends_line(file: BinaryIO, num_bytes: int) -> bool:
    """Whether the first `num_bytes` of the file end with a line."""
    file.seek(num_bytes - 1)
    return file.read(1) == b"\n"


def _copy_from(num_bytes: int, source: Path, target: Path) -> None:
    """Copy a file without its first `num_bytes`."""
    with source.open("rb") as whole, target.open("wb") as rest:
        whole.seek(num_bytes)
        shutil.copyfileobj(whole, rest, _BLOCK_BYTES)


def text_fields(params: SourceParams) -> files.Fields:
    """Return the knobs of text and label with the fields that they name."""
    label = {} if params.label_field is None else {"source.label_field": params.label_field}
    return {"source.text_field": params.text_field} | label


def line_of(record: dict[str, Any]) -> bytes:
    """Return a record as one line of JSON. Values that JSON lacks, such as dates, become text."""
    return json.dumps(record, default=str).encode() + b"\n"


def keep_records(lines: Iterable[bytes], store: SnapshotStore) -> tuple[SnapshotFile, ...]:
    """Keep every line, in the order of the source where it has no earlier order."""
    if store.forgotten:
        lines = filter(None, (redacted_line(line, store.forgotten) for line in lines))
    earlier = store.earlier.files
    unseen = Counter(_key_of(line) for file in earlier for line in _lines_of(store, file))
    new = list(_keep_shards(_not_in(lines, unseen), store, store.earlier.number + 1))
    gone = +unseen
    return (*chain.from_iterable(_keep_rest(file, gone, store) for file in earlier), *new)


def keep_earlier_records(store: SnapshotStore) -> tuple[SnapshotFile, ...]:
    """Keep the records of the earlier snapshot."""
    return keep_records((line for file in store.earlier.files for line in _lines_of(store, file)), store)


def _keep_rest(file: SnapshotFile, gone: Counter[bytes], store: SnapshotStore) -> Iterator[SnapshotFile]:
    """Keep an earlier shard without its records in `gone`."""
    if not gone or not any(_key_of(line) in gone for line in _lines_of(store, file)):
        yield store.keep_earlier(file, file.name)
        return
    rest = list(_not_in(_lines_of(store, file), gone))
    if rest:
        kept = _keep_shard(iter(rest), store, file.name)
        yield kept.model_copy(update={"snapshot": file.snapshot})


def _not_in(lines: Iterable[bytes], counts: Counter[bytes]) -> Iterator[bytes]:
    """Yield the lines that `counts` does not hold, and take the others out of it, as often as each occurs."""
    for line in lines:
        key = _key_of(line)
        if counts[key] > 0:
            counts[key] -= 1
        else:
            yield line


def _keep_shards(lines: Iterator[bytes], store: SnapshotStore, snapshot: int) -> Iterator[SnapshotFile]:
    for number, first in enumerate(lines, start=1):
        yield _keep_shard(chain([first], lines), store, f"{snapshot:06d}-{number:06d}.jsonl.zst")


def _keep_shard(lines: Iterator[bytes], store: SnapshotStore, name: str) -> SnapshotFile:
    """Keep lines in one shard, up to its size."""
    records, size_bytes = 0, 0
    with store.incoming() as beside:
        with ExitStack() as opened:
            sink = opened.enter_context(pa.OSFile(str(beside), "wb"))
            stream = opened.enter_context(pa.CompressedOutputStream(sink, "zstd"))
            for line in lines:
                stream.write(line)
                records += 1
                size_bytes += len(line)
                if size_bytes >= _SHARD_BYTES:
                    break
        return store.keep(name, beside).model_copy(update={"records": records})


def _lines_of(store: SnapshotStore, file: SnapshotFile) -> Iterator[bytes]:
    rest = b""
    with pa.OSFile(str(store.earlier.path_of(file))) as raw, pa.CompressedInputStream(raw, "zstd") as stream:
        while block := stream.read(_BLOCK_BYTES):
            *whole, rest = (rest + block).split(b"\n")
            yield from (line + b"\n" for line in whole)


def _key_of(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=_KEY_BYTES).digest()


def redact(path: Path, name: str, forgotten: Forgotten, beside: Path) -> bool:
    """Write the file `path`, called `name` in its source, without the forgotten texts to `beside`.

    A text is cut out of a longer one; a record or row that consists of it is left out.

    Returns:
        False, and nothing is written, if it has none of them, or is not text in a known format.
    """
    if not forgotten:
        return False
    try:
        if files.format_of(Path(name)) in files.PARQUET_SUFFIXES:
            return _redact_parquet(path, forgotten, beside)
        return _redact_text(path, _FORMATS.get(files.format_of(Path(name)), _in_any), forgotten, beside)
    except (errors.DataError, pa.ArrowInvalid, csv.Error):  # preprocess reports what cannot be read
        return False


def redacted_line(line: bytes, forgotten: Forgotten) -> bytes:
    """Return a record of JSON Lines without the forgotten texts; empty if one of its texts was such a text."""
    ((_, left),) = _in_json([line.decode()], forgotten)
    return left.encode()


def _redact_text(path: Path, pieces: Callable[..., Pieces], forgotten: Forgotten, beside: Path) -> bool:
    if not any(is_cut for is_cut, _ in pieces(streams.lines_of(path), forgotten)):
        return False
    with ExitStack() as opened:
        sink = opened.enter_context(pa.OSFile(str(beside), "wb"))
        compression = streams.compression_of(path)
        stream = opened.enter_context(pa.CompressedOutputStream(sink, compression)) if compression else sink
        for _, left in pieces(streams.lines_of(path), forgotten):
            stream.write(left.encode())
    return True


def _in_any(lines: Iterator[str], forgotten: Forgotten) -> Pieces:
    """Cut records if the first line is one, else plain text."""
    head = next((line for line in lines if line.strip()), "")
    return (_in_json if streams.is_json_object(head) else _in_text)(chain([head], lines), forgotten)


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
            record = streams.parsed(line) if line.strip() else None
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


# How the text of a format is cut, by suffix; of other files, the first line tells.
_FORMATS: Mapping[str, Callable[..., Pieces]] = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), _in_json),
    ".csv": partial(_in_rows, delimiter=","),
    ".tsv": partial(_in_rows, delimiter="\t"),
}
