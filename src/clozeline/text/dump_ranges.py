"""A range of a MediaWiki dump as a dump of its own: the head of the file, and the pages that begin in the range.

In a bz2 file the pages of a range are those of the streams that begin in it. `<page>` is nowhere in the text of a dump,
which holds `&lt;` in its place.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final, cast

from clozeline.records.files.streams import compression_of
from clozeline.text.bz2_streams import streams_from
from clozeline.text.raw_files import RawFile

_PAGE: Final = b"<page>"
_OVERLAP: Final = len(_PAGE) - 1
_END: Final = b"</mediawiki>"
_READ_BYTES: Final = 1 << 18


def has_ranges(file: RawFile) -> bool:
    """Return whether a range of a dump can be read by itself."""
    return compression_of(file.path) in (None, "bz2")


class _Pieces:
    """Pieces of bytes, to be read like a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = filter(None, pieces)

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, as many as are at hand; none at the end."""
        return next(self._pieces, b"")


def range_of_dump(path: Path, start: int, end: int) -> BinaryIO | None:
    """Return the dump of a range; None if no page begins there.

    Raises:
        DataError: the compressed data are damaged; raised while reading as well.
    """
    pages = _pages(path, start, end)
    first = next(pages, None)
    if first is None:
        return None
    return cast(BinaryIO, _Pieces(chain([_head(path) if start else b"", first], pages)))


def _head(path: Path) -> bytes:
    """Return what is before the first page."""
    head = b""
    for _, piece in _pieces(path, 0, 1):
        head += piece
        if _PAGE in head:
            break
    return head.partition(_PAGE)[0]


def _pages(path: Path, start: int, end: int) -> Iterator[bytes]:
    """Yield the text from the first page that begins in the range to the end of its last page, and the end tag."""
    has_begun = not start
    for is_ours, content in _cut_at_pages(_pieces(path, start, end), end):
        if is_ours is False:
            if has_begun:
                yield _END
            return
        has_begun = has_begun or is_ours is True
        if has_begun:
            yield content


def _cut_at_pages(pieces: Iterable[tuple[int, bytes]], end: int) -> Iterator[tuple[bool | None, bytes]]:
    """Yield the content, cut before each page, with whether the page begins in the range; None: no page begins."""
    waiting, at, limit = b"", 0, math.inf  # `at`: place of `waiting` in the content; from `limit` on, pages are others'
    for place, piece in pieces:
        if place >= end:
            limit = min(limit, at + len(waiting))
        before, *pages = (waiting + piece).split(_PAGE)
        for content in pages:
            yield None, before
            at += len(before)
            yield at < limit, _PAGE
            at += len(_PAGE)
            before = content
        # A tag may begin in the last bytes.
        waiting = before[-_OVERLAP:]
        yield None, before[:-_OVERLAP]
        at += len(before) - len(waiting)
    yield None, waiting


def _pieces(path: Path, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the content from `start` to the end of the file; each piece with its place."""
    if compression_of(path):
        yield from streams_from(path, start, end)
        return
    with path.open("rb") as file:
        file.seek(start)
        while piece := file.read(min(_READ_BYTES, end - start) if start < end else _READ_BYTES):
            yield start, piece
            start += len(piece)
