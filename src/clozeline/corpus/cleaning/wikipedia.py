"""A MediaWiki XML dump as a source: the running text of its articles, without markup, one page in memory at a time.

A range of a dump is read as a dump of its own: the head of the file, and the pages that begin in the range. A bz2 file
may have several streams, one after the other, as dumps and parallel compressors write it; there the pages of a range
are those of the streams that begin in it. `<page>` is nowhere in the text of a dump, which holds `&lt;` in its place.
"""

import bz2
import math
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree import ElementTree

import mwparserfromhell
from mwparserfromhell.nodes import ExternalLink, Heading, HTMLEntity, Node, Tag, Text, Wikilink
from mwparserfromhell.wikicode import Wikicode

from clozeline.corpus.cleaning.documents import Document, DropReason, RawFile
from clozeline.records.reading.streams import compression_of, damage_named, decompressed
from clozeline.system.errors import DataError

# Names valid in a wiki of any language, beside its own names.
CANONICAL_MEDIA_NAMES = frozenset({"file", "image", "category"})
_NOT_RUNNING_TEXT = {
    *("table", "ref", "references", "gallery", "imagemap", "timeline", "graph", "score"),
    *("math", "chem", "code", "source", "syntaxhighlight", "templatestyles", "style", "section", "categorytree"),
}
_LANGUAGE_LINK = re.compile(r"[a-z]{2,3}(-[a-z]+)*:")
_MAGIC_WORD = re.compile(r"__[A-Z]{4,}__")
# Lines of a table without an end, which the parser returns as text.
_TABLE_LINE = re.compile(r"^[ \t]*(?:\{\||\||!).*$", re.MULTILINE)
# Marks without their partner.
_UNBALANCED = re.compile(r"\{\{|\}\}|\[\[|\]\]|''+|</?(?:ref|cite|blockquote|small|div|span|br|p)\b[^<>]*>")
# Remainder of a pronunciation template.
_EMPTY_BRACKETS = re.compile(r" *\([,;:\s]*\)")
_INDENTATION = re.compile(r"^[ \t]+", re.MULTILINE)

_STREAM_HEAD = re.compile(rb"BZh[1-9]1AY&SY")
_STREAM_HEAD_BYTES = 10
_READ_BYTES = 1 << 18
_XML_BYTES = 1 << 14

_PAGE_TAG = b"<page>"
_OVERLAP = len(_PAGE_TAG) - 1
_END_OF_DUMP = b"</mediawiki>"

_ARTICLE_NAMESPACE = "0"
# Namespaces of files and of categories, in every wiki.
_MEDIA_NAMESPACES = {"6", "14"}
_REDIRECT = re.compile(r"^\s*#redirect", re.IGNORECASE)


def plain_text(wikitext: str, media_names: frozenset[str] = CANONICAL_MEDIA_NAMES) -> str:
    """Return the text of a page without markup.

    Templates, tables, references, comments, formulas, and links to media, categories and other languages are dropped.

    Args:
        wikitext: the source of a page.
        media_names: lower-case names of the wiki's namespaces for files and categories.
    """
    text = _rendered(mwparserfromhell.parse(wikitext), media_names)
    for pattern in (_MAGIC_WORD, _TABLE_LINE, _UNBALANCED, _EMPTY_BRACKETS, _INDENTATION):
        text = pattern.sub("", text)
    return text


def _rendered(code: Wikicode | None, media_names: frozenset[str]) -> str:
    if code is None:
        return ""
    parts = []
    for node in code.nodes:
        render = _RENDERERS.get(type(node))
        if render:
            parts.append(render(node, media_names))
    return "".join(parts)


def _wikilink(node: Wikilink, media_names: frozenset[str]) -> str:
    target = str(node.title).strip()
    prefix = target.partition(":")[0].strip().lower()
    if prefix in media_names or (node.text is None and _LANGUAGE_LINK.match(target)):
        return ""
    return target.removeprefix(":") if node.text is None else _rendered(node.text, media_names)


def _tag(node: Tag, media_names: frozenset[str]) -> str:
    if str(node.tag).strip().lower() in _NOT_RUNNING_TEXT:
        return ""
    return _rendered(node.contents, media_names)


# Renderer of each kind of node. Other kinds (templates, comments, arguments) hold no text.
_RENDERERS: dict[type[Node], Callable[[Node, frozenset[str]], str]] = {
    Text: lambda node, media_names: str(node.value),
    HTMLEntity: lambda node, media_names: str(node.normalize()),
    Heading: lambda node, media_names: _rendered(node.title, media_names),
    ExternalLink: lambda node, media_names: _rendered(node.title, media_names),
    Wikilink: _wikilink,
    Tag: _tag,
}


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
            place = after if _STREAM_HEAD.match(file.read(_STREAM_HEAD_BYTES)) else None


def _first_head(file: BinaryIO, start: int, end: int) -> int | None:
    """Return the place of the first stream that begins in a range."""
    file.seek(start)
    content, place = b"", start
    while place < end and (more := file.read(_READ_BYTES)):
        content += more
        if found := _STREAM_HEAD.search(content):
            return place + found.start() if place + found.start() < end else None
        place += max(len(content) - _STREAM_HEAD_BYTES + 1, 0)
        content = content[-_STREAM_HEAD_BYTES + 1 :]
    return None


def range_of_dump(path: Path, start: int, end: int) -> Iterator[bytes]:
    """Yield the dump of a range in pieces; none if no page begins there.

    Raises:
        DataError: the compressed data are damaged.
    """
    pages = _whole_pages(path, start, end)
    for first in pages:
        yield (_head(path) if start else b"") + first
        yield from pages


def _head(path: Path) -> bytes:
    """Return what is before the first page."""
    head = b""
    for _, piece in _pieces(path, 0, 1):
        head += piece
        if _PAGE_TAG in head:
            break
    return head.partition(_PAGE_TAG)[0]


def _whole_pages(path: Path, start: int, end: int) -> Iterator[bytes]:
    """Yield the text from the first page that begins in the range to the end of its last page, and the end tag."""
    has_begun = not start
    for is_ours, content in _cut_at_pages(_pieces(path, start, end), end):
        if is_ours is False:
            if has_begun:
                yield _END_OF_DUMP
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
        before, *pages = (waiting + piece).split(_PAGE_TAG)
        for content in pages:
            yield None, before
            at += len(before)
            yield at < limit, _PAGE_TAG
            at += len(_PAGE_TAG)
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


@dataclass(frozen=True, slots=True)
class WikiPage:
    """A page with its markup, which a worker removes."""

    title: str
    wikitext: str
    label: str
    media_names: frozenset[str]  # lower-case names of the file and category namespaces; links to them are not text
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


def wiki_pages(file: RawFile) -> Iterator[WikiPage]:
    """Yield the pages of a dump, compressed or not, or of a range of it.

    Raises:
        DataError: the file is not a complete dump.
    """
    if file.end is None:
        with decompressed(file.path) as stream:
            yield from _pages_of(iter(partial(stream.read, _XML_BYTES), b""), file, "")
        return
    pieces = range_of_dump(file.path, file.start, file.end)
    for first in pieces:
        yield from _pages_of(chain([first], pieces), file, f" of the range from byte {file.start:,}")


def _pages_of(pieces: Iterator[bytes], file: RawFile, where: str) -> Iterator[WikiPage]:
    media_names = set(CANONICAL_MEDIA_NAMES)
    num_pages = 0
    try:
        for element in _elements(pieces):
            if _name(element) == "namespace" and element.get("key") in _MEDIA_NAMESPACES:
                media_names.add((element.text or "").lower())
            elif _name(element) == "page":
                num_pages += 1
                yield _page(element, file.label, frozenset(media_names))
        if not num_pages and file.end is None:
            raise ElementTree.ParseError("XML without a <page>")
    except ElementTree.ParseError as error:
        raise DataError(
            f"{file.path} is no complete MediaWiki dump (pages-articles): {error}, after {num_pages} pages{where}",
            do="download the dump again, or choose another `source.kind`",
        ) from error


def _elements(pieces: Iterable[bytes]) -> Iterator[ElementTree.Element]:
    """Yield elements when they are complete. Pages are cleared after use, or the whole dump would stay in memory."""
    events = _events(pieces)
    root = next(events)[1]
    for event, element in events:
        if event == "end":
            yield element
            if _name(element) == "page":
                root.clear()


def _events(pieces: Iterable[bytes]) -> Iterator[tuple[str, ElementTree.Element]]:
    parser: Any = ElementTree.XMLPullParser(("start", "end"))
    for piece in pieces:
        parser.feed(piece)
        yield from parser.read_events()
    parser.close()
    yield from parser.read_events()


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
