"""Files as streams of UTF-8 lines, decompressed if needed, with one line in memory; and facts of every record.

That is: what becomes of a record that cannot be read, the identity of a text by its content
(the same in the corpus and in a task), and JSON from real files, in which strings may hold lone surrogates, which have
no UTF-8.
"""

import bz2
import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pyarrow as pa

from clozeline.system.errors import DataError

# Called with the error of a bad record. If it returns, the record is left out.
OnBad = Callable[[DataError], None]

_BLOCK_BYTES = 1 << 18
# Twelve bytes for each character of the longest document, as JSON may escape it; a small compressed file can hold any
# number of them.
_MAX_LINE_BYTES = 384_000_000
_WIDE_BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}

# Compressions by magic bytes, because a suffix can be wrong.
_MAGIC_BYTES = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}

KEY_BYTES = 16

_HALF = re.compile("[\ud800-\udfff]")
_IN_ITS_PLACE = "?"


def stop(error: DataError) -> None:
    """Raise the error: the first bad record ends the reading."""
    raise error


_DECOMPRESSORS: dict[str | None, Callable[[BinaryIO], Any]] = {
    None: lambda stream: stream,
    "gzip": lambda stream: gzip.GzipFile(fileobj=stream),
    "bz2": bz2.BZ2File,
    "zstd": lambda stream: io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd")),
}


def compression_of(path: Path) -> str | None:
    """Return the compression of a file, by the name that Arrow has for it; None if there is none."""
    with path.open("rb") as file:
        head = file.read(4)
    return next((name for magic, name in _MAGIC_BYTES.items() if head.startswith(magic)), None)


@contextmanager
def decompressed(path: Path) -> Iterator[BinaryIO]:
    """Open a plain or compressed (gzip, bz2, zstd) file for reading.

    Raises:
        DataError: the compressed data are truncated or damaged; raised while reading inside the block.
    """
    decompress = _DECOMPRESSORS[compression_of(path)]
    with path.open("rb") as file, decompress(file) as stream, damage_named(path, file):
        yield stream


@contextmanager
def damage_named(path: Path, file: BinaryIO) -> Iterator[None]:
    """Raise a DataError in place of the error of damaged compressed data."""
    try:
        yield
    except (EOFError, zlib.error, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise DataError(
            f"{path}: truncated or damaged data near byte {file.tell():,} of {path.stat().st_size:,}: {error}",
            do="copy or download the file again",
        ) from error


def is_empty(path: Path) -> bool:
    """Return whether a plain or compressed file holds nothing but white space.

    Raises:
        DataError: the compressed data are damaged.
    """
    with decompressed(path) as stream:
        while content := stream.read(_BLOCK_BYTES):
            if content.removeprefix(codecs.BOM_UTF8).strip():
                return False
    return True


def read_lines(path: Path, left_out_by: str | None = None, on_bad: OnBad = stop) -> Generator[str, None, None]:
    """Yield the lines of a UTF-8 text file, with their line ends.

    Args:
        left_out_by: the knob that can exclude a file that is not text, for the message.
        on_bad: takes the error of a line that is not UTF-8; the line is then blank.

    Raises:
        DataError: the file is not UTF-8 (with the location), or its compressed data are damaged.
    """
    with decompressed(path) as stream:
        start = _Start(path, left_out_by)
        yield from _decoded_lines(iter(lambda: _line(stream, start), b""), start, on_bad)


def lines_of(path: Path) -> Generator[str, None, None]:
    """Yield lines like `read_lines`, but a lone carriage return also ends a line, as in old tables.

    Raises:
        DataError: as in `read_lines`.
    """
    for line in read_lines(path):
        if line.count("\r") > line.endswith("\r\n"):
            yield from io.StringIO(line, newline="")
        else:
            yield line


@dataclass(frozen=True, slots=True)
class _Start:
    """Location of the first line, for messages."""

    path: Path
    left_out_by: str | None
    line: int = 1
    byte: int = 0


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Raw bytes of some whole lines of a file, to be decoded by a worker."""

    content: bytes
    start: _Start
    # Whether the file holds these bytes as they are: then a copy for another process names their place only.
    is_stored: bool = False

    @property
    def first_line(self) -> int:
        return self.start.line

    def later(self, num_lines: int) -> "LineBlock":
        """Return the block as that many lines later in the file."""
        return replace(self, start=replace(self.start, line=self.start.line + num_lines))

    def __reduce__(self) -> tuple[Callable[..., "LineBlock"], tuple[object, ...]]:
        if self.is_stored:
            return _stored_block, (self.start, len(self.content))
        return LineBlock, (self.content, self.start)

    def lines(self, on_bad: OnBad = stop) -> Iterator[str]:
        """Yield the lines like `read_lines`; some come without their line end.

        Raises:
            DataError: a line is not UTF-8, unless `on_bad` takes the error.
        """
        text = self._plain_text()
        if text is not None:
            return iter(text.split("\n"))
        return _decoded_lines(io.BytesIO(self.content), self.start, on_bad)

    def _plain_text(self) -> str | None:
        """Decode the block at once, five times as fast; None if a line needs checking on its own."""
        if self.first_line == 1 or 0 in self.content:
            return None
        try:
            return self.content.decode("utf-8")
        except UnicodeDecodeError:
            return None


def _stored_block(start: _Start, num_bytes: int) -> LineBlock:
    with start.path.open("rb") as file:
        file.seek(start.byte)
        return LineBlock(file.read(num_bytes), start, is_stored=True)


def read_blocks(
    path: Path, left_out_by: str | None = None, start: int = 0, end: int | None = None
) -> Generator[LineBlock, None, None]:
    """Yield a file as blocks of whole lines, or the lines that begin in a range of the bytes of a plain file.

    The lines of a later range are counted from 2, because line 1 is that of the file.

    Args:
        left_out_by: as in `read_lines`.

    Raises:
        DataError: its compressed data are damaged.
    """
    is_stored = compression_of(path) is None
    with decompressed(path) as stream:
        line, offset = 1, 0
        if start:
            stream.seek(start - 1)
            line, offset = 2, start - 1 + len(_line(stream, _Start(path, left_out_by)))
        while content := stream.read(_BLOCK_BYTES if end is None else min(_BLOCK_BYTES, max(end - offset, 0))):
            if not content.endswith(b"\n"):
                content += _line(stream, _Start(path, left_out_by))
            yield LineBlock(content, _Start(path, left_out_by, line, offset), is_stored)
            line += content.count(b"\n")
            offset += len(content)


def _line(stream: BinaryIO, start: _Start) -> bytes:
    """Return the next line, or its rest; empty at the end. Raises DataError: it is longer than memory should hold."""
    line = stream.readline(_MAX_LINE_BYTES + 1)
    if len(line) > _MAX_LINE_BYTES:
        exclude = f", or exclude the file with {start.left_out_by}" if start.left_out_by else ""
        raise DataError(f"{start.path} has a line of more than {_MAX_LINE_BYTES:,} bytes", do=f"split it{exclude}")
    return line


def _decoded_lines(raw_lines: Iterable[bytes], start: _Start, on_bad: OnBad) -> Iterator[str]:
    offset = start.byte
    for number, raw in enumerate(raw_lines, start=start.line):
        try:
            line = _decoded(raw, start, number, offset)
        except DataError as error:
            on_bad(error)
            line = "\n"
        yield line
        offset += len(raw)


def _decoded(raw: bytes, start: _Start, number: int, offset: int) -> str:
    encoding = _WIDE_BOMS.get(raw[:2]) if number == 1 else None
    if encoding or raw.count(0) * 4 > len(raw):
        raise _wrong_encoding(start, f", line {number}", raw[:8].hex(" "), "UTF-16")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f", line {number}, byte {offset + error.start}"
        given = f"byte 0x{raw[error.start]:02x} in {raw[max(error.start - 20, 0) : error.start + 20]!r}"
        raise _wrong_encoding(start, place, given, "ISO-8859-1") from error
    return text.removeprefix("\ufeff") if number == 1 else text


def _wrong_encoding(start: _Start, place: str, given: str, guess: str) -> DataError:
    convert = f"convert it: `iconv -f {guess} -t UTF-8 {start.path.name} > NEW`"
    return DataError(
        f"{start.path}{place}: not UTF-8 text",
        given=given,
        expected="text in UTF-8",
        do=f"if it is text, {convert}; otherwise exclude it with {start.left_out_by}" if start.left_out_by else convert,
    )


def content_key(*texts: str) -> bytes:
    """Return 128 bits of BLAKE2b over the texts in order, ignoring case and white space."""
    normalized = "\x1f".join(" ".join(text.casefold().split()) for text in texts)
    return blake2b(normalized.encode(), digest_size=KEY_BYTES).digest()


def identity_of(*texts: str) -> str:
    """Return `content_key` in hex, as in the column `doc_id` of the clean text."""
    return content_key(*texts).hex()


def keyed_hash(words: Sequence[str], key: bytes, num_bytes: int) -> str:
    """Return a hash of a text's words in hex. Without `key` nobody can find out by trying which text it is."""
    return blake2b(" ".join(words).encode(), digest_size=num_bytes, key=key).hexdigest()


def parsed(text: str, *, keeps_halves: bool = False) -> Any:
    """Parse a JSON value. A lone surrogate, left by cutting a text inside an emoji, becomes a question mark, unless
    `keeps_halves`.

    Raises:
        ValueError: not JSON, or nested too deeply.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # The standard library accepts what orjson refuses but real files hold: NaN and lone surrogates.
        try:
            value = json.loads(text)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        return value if keeps_halves else whole(value)


def is_json_object(line: str) -> bool:
    try:
        return line.lstrip().startswith("{") and isinstance(parsed(line), dict)
    except ValueError:
        return False


def whole(value: Any) -> Any:
    """Return a JSON value with a question mark for each lone surrogate."""
    if isinstance(value, str):
        return _HALF.sub(_IN_ITS_PLACE, value)
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    if isinstance(value, dict):
        return {whole(name): whole(inner) for name, inner in value.items()}
    return value
