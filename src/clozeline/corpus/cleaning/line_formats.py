"""Formats that are read line by line: plain text, JSON Lines, CSV, and the output of wikiextractor."""

import html
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice

from clozeline.corpus.cleaning.documents import Document, OpenFile
from clozeline.records.reading import files, streams
from clozeline.system.errors import DataError

_MAX_DOCUMENT_CHARACTERS = 32_000_000
# Size of a plain text's beginning, which shows whether paragraphs or lines are its documents.
_NUM_SHAPE_LINES, _NUM_SHAPE_CHARACTERS = 1000, 1_000_000
_MIN_SHAPE_LINES = 20
# A text counts as wrapped at one width if this share of its lines has at least 0.8 of the longest line's length.
_FULL_LINE, _WRAPPED_SHARE = 0.8, 0.6
# Share of blank lines among those of a text in each line: at an end of the file, or between chapters.
_BLANK_SHARE = 0.02
_WIKIEXTRACTOR_HEAD = re.compile(r'<doc id="[^"]*".*?title="([^"]*)".*>\s*$')


LineReader = Callable[[Iterator[str], OpenFile], Iterator[Document]]


def read_text(lines: Iterable[str], opened: OpenFile) -> Iterator[Document]:
    """Yield the documents of plain text. The user chooses the unit: paragraph, line or file.

    A file that begins with many unwrapped lines and hardly a blank one has no paragraphs: its unit is the line.
    """
    unit, lines = opened.reading.one_document_per, iter(lines)
    if unit == "paragraph":
        first = _first_lines(lines)
        unit, lines = ("line" if _has_a_text_per_line(first) else unit), chain(first, lines)
    for text in _TEXT_UNITS[unit](lines, opened):
        opened.shapes[unit] += 1
        yield Document(text, opened.file.label)


def read_json_lines(lines: Iterable[str], opened: OpenFile) -> Iterator[Document]:
    return opened.with_bad(partial(_in_json, lines, opened, 1))


def _in_json(lines: Iterable[str], opened: OpenFile, first_line: int, on_bad: streams.OnBad) -> Iterator[Document]:
    rows = files.json_records(lines, opened.name, opened.reading.fields, first_line, keeps_halves=True, on_bad=on_bad)
    return opened.documents_of(rows, on_bad)


@dataclass(frozen=True, slots=True)
class JsonBlock:
    """Lines of a JSON Lines file. The reading task finds the line ends; another one parses the lines."""

    block: streams.LineBlock
    opened: OpenFile

    @property
    def size_bytes(self) -> int:
        return len(self.block.content)

    def identity(self) -> bytes:
        return pickle.dumps(
            (self.block.content, self.block.first_line == 1, self.opened.file.label, self.opened.reading)
        )

    def later(self, num_lines: int) -> "JsonBlock":
        """Return the block as that many lines later in the file."""
        return replace(self, block=self.block.later(num_lines))

    def documents(self) -> Iterator[Document]:
        return self.opened.with_bad(
            lambda on_bad: _in_json(self.block.lines(on_bad), self.opened, self.block.first_line, on_bad)
        )


def read_separated(lines: Iterator[str], opened: OpenFile, *, delimiter: str) -> Iterator[Document]:
    """Yield the documents of a CSV or TSV file; none for an empty file, which has no header either."""
    first, whole = _peeked(lines)
    if not first:
        return iter(())

    def read(on_bad: streams.OnBad) -> Iterator[Document]:
        rows = files.separated_records(whole, opened.name, opened.reading.fields, delimiter=delimiter, on_bad=on_bad)
        return opened.documents_of(rows, on_bad)

    return opened.with_bad(read)


def read_wikiextractor(lines: Iterable[str], opened: OpenFile) -> Iterator[Document]:
    """Yield the documents of `<doc id= url= title=>` blocks, without the title that the first line repeats."""
    block: list[str] = []
    title, opened_at = "", 0
    for number, line in enumerate(lines, start=1):
        head = _WIKIEXTRACTOR_HEAD.match(line)
        if head:
            title, opened_at, block = html.unescape(head[1]), number, []
        elif line.startswith("</doc>") and opened_at:
            yield Document("".join(block).strip().removeprefix(title), opened.file.label, title)
            opened_at = 0
        elif opened_at:
            block.append(line)
    if opened_at:
        raise DataError(f"{opened.name}, line {opened_at}: the <doc> “{title}” has no </doc>", do="extract it again")


def sniff(lines: Iterator[str]) -> tuple[LineReader, Iterator[str]]:
    """Guess the format of a file whose name does not tell it; return the reader and all lines."""
    first, whole = _peeked(lines)
    if _WIKIEXTRACTOR_HEAD.match(first):
        return read_wikiextractor, whole
    return (read_json_lines if streams.is_json_object(first) else read_text), whole


def _peeked(lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """Return the first line that is not blank (empty if there is none), and all lines."""
    seen: list[str] = []
    for line in lines:
        seen.append(line)
        if line.strip():
            return line, chain(seen, lines)
    return "", iter(seen)


def _joined(lines: Iterable[str], opened: OpenFile) -> str:
    """Return the text of the lines, which memory can hold."""
    joined: list[str] = []
    size = 0
    for line in lines:
        joined.append(line)
        size += len(line)
        if size > _MAX_DOCUMENT_CHARACTERS:
            per = opened.reading.one_document_per
            raise DataError(
                f"{opened.name}: a {per} is longer than {_MAX_DOCUMENT_CHARACTERS:,} characters",
                do="set `source.one_document_per` to line (or paragraph): a document has to fit into memory",
            )
    return "".join(joined)


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


_TEXT_UNITS: dict[str, Callable[[Iterable[str], OpenFile], Iterable[str]]] = {
    "paragraph": lambda lines, opened: (
        _joined(block, opened) for has_text, block in groupby(lines, lambda line: bool(line.strip())) if has_text
    ),
    "line": lambda lines, opened: (line for line in lines if line.strip()),
    "file": lambda lines, opened: filter(None, [_joined(lines, opened)]),
}
