"""Formats that are read line by line: plain text, JSON Lines, CSV, and the output of wikiextractor."""

import html
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

from clozeline.errors import DataError
from clozeline.records.json_values import parsed
from clozeline.records.placed import json_records, separated_records
from clozeline.records.streams import Block
from clozeline.text.documents import Document
from clozeline.text.from_records import TextFields, documents_of

_MAX_DOCUMENT_CHARACTERS = 32_000_000
_WIKIEXTRACTOR_HEAD = re.compile(r'<doc id="[^"]*".*?title="([^"]*)".*>\s*$')


@dataclass(frozen=True)
class LineSettings:
    """What readers need besides the lines: the file's name for messages, its label, and the user's choices."""

    file: str
    label: str
    fields: TextFields
    one_document_per: str


LineReader = Callable[[Iterator[str], LineSettings], Iterator[Document]]


def read_text(lines: Iterable[str], settings: LineSettings) -> Iterator[Document]:
    """Plain text; what a document is (paragraph, line, file) is the user's choice."""
    for text in _TEXT_UNITS[settings.one_document_per](lines, settings):
        yield Document(text, settings.label)


def read_json_lines(lines: Iterable[str], settings: LineSettings, first_line: int = 1) -> Iterator[Document]:
    rows = json_records(lines, settings.file, settings.fields.by_knob, first_line)
    return documents_of(rows, settings.fields, settings.label)


@dataclass(frozen=True, slots=True)
class JsonBlock:
    """Lines of a JSON Lines file: to find where one ends is cheap, to take it apart is work for a worker."""

    block: Block
    settings: LineSettings

    @property
    def size_bytes(self) -> int:
        return len(self.block.content)

    def documents(self) -> Iterator[Document]:
        return read_json_lines(self.block.lines(), self.settings, self.block.first_line)


def read_separated(lines: Iterator[str], settings: LineSettings, *, delimiter: str) -> Iterator[Document]:
    """An empty file, which has no header either, is no document."""
    first, whole = _peeked(lines)
    if first:
        rows = separated_records(whole, settings.file, settings.fields.by_knob, delimiter=delimiter)
        yield from documents_of(rows, settings.fields, settings.label)


def read_wikiextractor(lines: Iterable[str], settings: LineSettings) -> Iterator[Document]:
    """`<doc id= url= title=>` blocks; the title, repeated as the first line, is not text."""
    block: list[str] = []
    title, opened_at = "", 0
    for number, line in enumerate(lines, start=1):
        head = _WIKIEXTRACTOR_HEAD.match(line)
        if head:
            title, opened_at, block = html.unescape(head[1]), number, []
        elif line.startswith("</doc>") and opened_at:
            yield Document("".join(block).strip().removeprefix(title), settings.label, title)
            opened_at = 0
        elif opened_at:
            block.append(line)
    if opened_at:
        raise DataError(
            f"{settings.file}, line {opened_at}: the <doc> that begins here has no </doc>",
            given=f"the file ends within “{title}”",
            expected="complete <doc …> … </doc> blocks",
            do="copy or extract the file again; it is cut short",
        )


def sniff(lines: Iterator[str]) -> tuple[LineReader, Iterator[str]]:
    """Guess the format of a file whose name does not tell; give the lines back whole."""
    first, whole = _peeked(lines)
    return _reader_for(first), whole


def _peeked(lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """The first line that is not blank, or none; and all lines."""
    seen: list[str] = []
    for line in lines:
        seen.append(line)
        if line.strip():
            return line, chain(seen, lines)
    return "", iter(seen)


def _reader_for(first: str) -> LineReader:
    if _WIKIEXTRACTOR_HEAD.match(first):
        return read_wikiextractor
    if first.lstrip().startswith("{") and _is_object(first):
        return read_json_lines
    return read_text


def _is_object(line: str) -> bool:
    try:
        return isinstance(parsed(line), dict)
    except ValueError:
        return False


BY_SUFFIX: dict[str, LineReader] = {
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json_lines,
    ".csv": partial(read_separated, delimiter=","),
    ".tsv": partial(read_separated, delimiter="\t"),
}


def _paragraphs(lines: Iterable[str], settings: LineSettings) -> Iterator[str]:
    block: list[str] = []
    size = 0
    for line in lines:
        if line.strip():
            block.append(line)
            size += len(line)
            _check_size(size, settings)
        elif block:
            yield "".join(block)
            block, size = [], 0
    if block:
        yield "".join(block)


def _whole(lines: Iterable[str], settings: LineSettings) -> Iterator[str]:
    block: list[str] = []
    size = 0
    for line in lines:
        block.append(line)
        size += len(line)
        _check_size(size, settings)
    if block:
        yield "".join(block)


def _each_line(lines: Iterable[str], settings: LineSettings) -> Iterator[str]:
    return (line for line in lines if line.strip())


_TEXT_UNITS: dict[str, Callable[[Iterable[str], LineSettings], Iterator[str]]] = {
    "paragraph": _paragraphs,
    "line": _each_line,
    "file": _whole,
}


def _check_size(size: int, settings: LineSettings) -> None:
    if size > _MAX_DOCUMENT_CHARACTERS:
        raise DataError(
            f"{settings.file}: a document of more than {_MAX_DOCUMENT_CHARACTERS:,} characters",
            given=f"one document per {settings.one_document_per}",
            expected="documents that fit in memory many times over",
            do="set `source.one_document_per` to line (or paragraph)",
        )
