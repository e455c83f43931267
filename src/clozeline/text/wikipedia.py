"""A MediaWiki XML dump as a source: articles only, without their markup, one page in memory at a time."""

import pickle
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from xml.etree import ElementTree

from clozeline.errors import DataError
from clozeline.records.files.meter import Meter
from clozeline.records.files.streams import decompressed
from clozeline.text.documents import Document, DropReason, Source
from clozeline.text.dump_ranges import range_of_dump
from clozeline.text.raw_files import RawFile, Reading, total_bytes_of
from clozeline.text.wikitext import CANONICAL_MEDIA_NAMES, plain_text

_ARTICLE_NAMESPACE = "0"
_MEDIA_NAMESPACES = {"6", "14"}
"""Namespaces of files and of categories, in every wiki."""
_REDIRECT = re.compile(r"^\s*#redirect", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WikiPage:
    """A page with its markup, which a worker removes."""

    title: str
    wikitext: str
    label: str
    media_names: frozenset[str]
    """Lower-case names of the file and category namespaces; links to them are not text."""
    dropped: DropReason | None

    @property
    def size_bytes(self) -> int:
        return len(self.wikitext)

    def identity(self) -> bytes:
        return pickle.dumps((self.title, self.wikitext, self.label, sorted(self.media_names), self.dropped))

    def documents(self) -> tuple[Document]:
        if self.dropped:
            return (Document("", self.label, self.title, self.dropped),)
        return (Document(plain_text(self.wikitext, self.media_names), self.label, self.title),)


def read_dumps(files: Sequence[RawFile], reading: Reading) -> Source:
    """Open dumps, compressed or not; `reading` has nothing for them.

    Raises:
        DataError: raised while reading: a file is not a complete dump.
    """
    meter = Meter()
    return Source(
        units=(page for file in files for page in _pages(file, meter)),
        total_bytes=total_bytes_of(files),
        meter=meter,
    )


def _pages(file: RawFile, meter: Meter) -> Iterator[WikiPage]:
    if file.end is not None:
        stream = range_of_dump(file.path, file.start, file.end)
        if stream is not None:
            yield from _pages_of(stream, file, f" of the range from byte {file.start:,}")
        return
    with decompressed(file.path, meter) as stream:
        yield from _pages_of(stream, file, "")


def _pages_of(stream: BinaryIO, file: RawFile, where: str) -> Iterator[WikiPage]:
    media_names = set(CANONICAL_MEDIA_NAMES)
    num_pages = 0
    try:
        for element in _elements(ElementTree.iterparse(stream, events=("start", "end"))):
            if _name(element) == "namespace" and element.get("key") in _MEDIA_NAMESPACES:
                media_names.add((element.text or "").lower())
            elif _name(element) == "page":
                num_pages += 1
                yield _page(element, file.label, frozenset(media_names))
    except ElementTree.ParseError as error:
        raise _not_a_dump_error(file.path, f"{error}, after {num_pages} pages{where}") from error
    if not num_pages and file.end is None:
        raise _not_a_dump_error(file.path, "XML without a <page>")


def _elements(events: Iterator[tuple[str, ElementTree.Element]]) -> Iterator[ElementTree.Element]:
    """Yield elements when they are complete. Pages are cleared after use, or the whole dump would stay in memory."""
    root = next(events)[1]
    for event, element in events:
        if event == "end":
            yield element
            if _name(element) == "page":
                root.clear()


def _page(page: ElementTree.Element, label: str, media_names: frozenset[str]) -> WikiPage:
    title = page.findtext("{*}title") or ""
    wikitext = page.findtext("{*}revision/{*}text") or ""
    dropped = None
    if (page.findtext("{*}ns") or _ARTICLE_NAMESPACE) != _ARTICLE_NAMESPACE:
        dropped = DropReason.NOT_AN_ARTICLE
    elif page.find("{*}redirect") is not None or _REDIRECT.match(wikitext):
        dropped = DropReason.REDIRECT
    return WikiPage(title, "" if dropped else wikitext, label, media_names, dropped)


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _not_a_dump_error(file: Path, given: str) -> DataError:
    return DataError(
        f"{file}: not a complete MediaWiki dump (pages-articles, compressed or not): {given}",
        do="download the dump again, or choose another `source.kind`",
    )
