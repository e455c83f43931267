"""Formats that are read line by line: plain text, JSON Lines, CSV, and the output of wikiextractor."""

import html
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from clozeline.corpus.cleaning.documents import Document, TextFields, documents_of
from clozeline.records.reading.files import json_records, separated_records
from clozeline.records.reading.streams import LineBlock, parsed, stop
from clozeline.system.errors import DataError

_MAX_DOCUMENT_CHARACTERS = 32_000_000
_NUM_SHAPE_LINES, _NUM_SHAPE_CHARACTERS = 1000, 1_000_000
"""Size of a plain text's beginning, which shows whether paragraphs or lines are its documents."""
_MIN_SHAPE_LINES = 20
_FULL_LINE, _WRAPPED_SHARE = 0.8, 0.6
"""A text counts as wrapped at one width if this share of its lines has at least 0.8 of the longest line's length."""
_BLANK_SHARE = 0.02
"""Share of blank lines among those of a text in each line: at an end of the file, or between chapters."""
_WIKIEXTRACTOR_HEAD = re.compile(r'<doc id="[^"]*".*?title="([^"]*)".*>\s*$')


@dataclass(frozen=True)
class LineSettings:
    """Settings of a reader: the file's name for messages, its label, and the user's choices."""

    file: str
    label: str
    fields: TextFields
    one_document_per: str
    quarantines: bool = False
    """Whether a bad record is set aside, instead of stopping the reading."""
    shapes: Counter[str] = field(default_factory=Counter)
    """Counts the documents of plain text by their unit; shared by the files of a source."""


LineReader = Callable[[Iterator[str], LineSettings], Iterator[Document]]


def read_text(lines: Iterable[str], settings: LineSettings) -> Iterator[Document]:
    """Yield the documents of plain text. The user chooses the unit: paragraph, line or file.

    A file that begins with many unwrapped lines and hardly a blank one has no paragraphs: its unit is the line.
    """
    unit, lines = settings.one_document_per, iter(lines)
    if unit == "paragraph":
        first = _first_lines(lines)
        unit, lines = ("line" if _has_a_text_per_line(first) else unit), chain(first, lines)
    for text in _TEXT_UNITS[unit](lines, settings):
        settings.shapes[unit] += 1
        yield Document(text, settings.label)


def read_json_lines(
    lines: Iterable[str], settings: LineSettings, first_line: int = 1, bad: list[DataError] | None = None
) -> Iterator[Document]:
    """Yield the documents of JSON Lines, and last those in place of bad records; `bad` has those of the lines."""
    bad = [] if bad is None else bad
    on_bad = bad.append if settings.quarantines else stop
    rows = json_records(lines, settings.file, settings.fields.by_knob, first_line, keeps_halves=True, on_bad=on_bad)
    yield from documents_of(rows, settings.fields, settings.label, on_bad)
    yield from (Document.in_place_of(error, settings.label) for error in bad)


@dataclass(frozen=True, slots=True)
class JsonBlock:
    """Lines of a JSON Lines file. The reading task finds the line ends; another one parses the lines."""

    block: LineBlock
    settings: LineSettings

    @property
    def size_bytes(self) -> int:
        return len(self.block.content)

    def identity(self) -> bytes:
        return pickle.dumps((self.block.content, self.block.first_line == 1, self.settings.label, self.settings.fields))

    def later(self, num_lines: int) -> "JsonBlock":
        """Return the block as that many lines later in the file."""
        return replace(self, block=self.block.later(num_lines))

    def documents(self) -> Iterator[Document]:
        bad: list[DataError] = []
        lines = self.block.lines(bad.append if self.settings.quarantines else stop)
        return read_json_lines(lines, self.settings, self.block.first_line, bad)


def read_separated(lines: Iterator[str], settings: LineSettings, *, delimiter: str) -> Iterator[Document]:
    """Yield the documents of a CSV or TSV file; none for an empty file, which has no header either."""
    first, whole = _peeked(lines)
    if first:
        bad: list[DataError] = []
        on_bad = bad.append if settings.quarantines else stop
        rows = separated_records(whole, settings.file, settings.fields.by_knob, delimiter=delimiter, on_bad=on_bad)
        yield from documents_of(rows, settings.fields, settings.label, on_bad)
        yield from (Document.in_place_of(error, settings.label) for error in bad)


def read_wikiextractor(lines: Iterable[str], settings: LineSettings) -> Iterator[Document]:
    """Yield the documents of `<doc id= url= title=>` blocks, without the title that the first line repeats."""
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
            f"{settings.file}, line {opened_at}: the <doc> “{title}” has no </doc>", do="copy or extract the file again"
        )


def sniff(lines: Iterator[str]) -> tuple[LineReader, Iterator[str]]:
    """Guess the format of a file whose name does not tell it; return the reader and all lines."""
    first, whole = _peeked(lines)
    return _reader_for(first), whole


def _peeked(lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """Return the first line that is not blank (empty if there is none), and all lines."""
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


def _first_lines(lines: Iterator[str]) -> list[str]:
    first: list[str] = []
    num_characters = 0
    for line in islice(lines, _NUM_SHAPE_LINES):
        first.append(line)
        num_characters += len(line)
        if num_characters >= _NUM_SHAPE_CHARACTERS:
            break
    return first


def _has_a_text_per_line(lines: Sequence[str]) -> bool:
    """Tell whether `lines` look like a text each: several, hardly a blank one, and not wrapped at one width."""
    inner = "".join(lines).strip().split("\n")
    lengths = [len(line) for line in map(str.strip, inner) if line]
    if len(lengths) < _MIN_SHAPE_LINES or len(inner) - len(lengths) > _BLANK_SHARE * len(inner):
        return False
    width = max(lengths)
    num_full = sum(length >= _FULL_LINE * width for length in lengths)
    return num_full < _WRAPPED_SHARE * len(lengths)


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
            f"{settings.file}: a {settings.one_document_per} is longer than {_MAX_DOCUMENT_CHARACTERS:,} characters",
            do="set `source.one_document_per` to line (or paragraph): memory has to hold several copies of a document",
        )
