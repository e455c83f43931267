"""Streams of a bz2 file that has several, one after the other, as dumps and parallel compressors write it."""

import bz2
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from clozeline.records.files.streams import damage_named

_HEAD: Final = re.compile(rb"BZh[1-9]1AY&SY")
_HEAD_BYTES: Final = 10
_READ_BYTES: Final = 1 << 18


def streams_from(path: Path, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the content from the first stream that begins in a range of bytes, to the end of the file.

    Each piece comes with the place where its stream begins. There is none if no stream begins in the range.

    Raises:
        DataError: the compressed data are truncated or damaged.
    """
    with path.open("rb") as file, damage_named(path, file):
        place = _first_head(file, start, end)
        while place is not None:
            file.seek(place)
            stream = bz2.BZ2Decompressor()
            while not stream.eof:
                if not (stored := file.read(_READ_BYTES)):
                    raise EOFError("the last stream has no end")
                yield place, stream.decompress(stored)
            after = file.tell() - len(stream.unused_data)
            file.seek(after)
            place = after if _HEAD.match(file.read(_HEAD_BYTES)) else None


def _first_head(file: BinaryIO, start: int, end: int) -> int | None:
    """Return the place of the first stream that begins in a range."""
    file.seek(start)
    content, place = b"", start
    while place < end and (more := file.read(_READ_BYTES)):
        content += more
        if found := _HEAD.search(content):
            return place + found.start() if place + found.start() < end else None
        place += max(len(content) - _HEAD_BYTES + 1, 0)
        content = content[-_HEAD_BYTES + 1 :]
    return None
