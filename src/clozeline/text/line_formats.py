"""Formats that are read line by line: plain text, JSON Lines, CSV, and the output of wikiextractor."""

import csv
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

import orjson

from clozeline.errors import DataError
from clozeline.text.documents import Document
from clozeline.text.records import Fields, check_fields, document_of
from clozeline.text.streams import Block

_MAX_DOCUMENT_CHARACTERS = 32_000_000
_SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
_WIKIEXTRACTOR_HEAD = re.compile(r'<doc id="[^"]*".*?title="([^"]*)".*>\s*$')


@dataclass(frozen=True)
class LineSettings:
    """What readers need besides the lines: the file's name for messages, its label, and the user's choices."""

    file: str
    label: str
    fields: Fields
    one_document_per: str


LineReader = Callable[[Iterable[str], LineSettings], Iterator[Document]]


def read_text(lines: Iterable[str], settings: LineSettings) -> Iterator[Document]:
    """Plain text; what a document is (paragraph, line, file) is the user's choice."""
    for text in _TEXT_UNITS[settings.one_document_per](lines, settings):
        yield Document(text, settings.label)


def read_json_lines(lines: Iterable[str], settings: LineSettings, first_line: int = 1) -> Iterator[Document]:
    for number, line in enumerate(lines, start=first_line):
        if line.strip():
            place = f"{settings.file}, line {number}"
            yield document_of(_json_object(line, place), settings.fields, settings.label, place)


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


def read_separated(lines: Iterable[str], settings: LineSettings, *, delimiter: str) -> Iterator[Document]:
    """CSV with a header; quoted fields may hold line ends and separators (RFC 4180)."""
    csv.field_size_limit(_MAX_DOCUMENT_CHARACTERS)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = next(rows, [])
        if header:
            _check_separator(header, delimiter, settings)
            check_fields(header, settings.fields, f"{settings.file}, line 1")
        for row in rows:
            if row:
                place = f"{settings.file}, line {rows.line_num}"
                yield document_of(_csv_record(header, row, place), settings.fields, settings.label, place)
    except csv.Error as error:
        raise DataError(
            f"{settings.file}, line {rows.line_num}: not CSV",
            given=str(error),
            expected='fields with a separator between, in double quotes where they hold one ("" for a quote itself)',
            do="mend the quotes near that line (an unclosed one reaches to the end of the file)",
        ) from error


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
    seen: list[str] = []
    for line in lines:
        seen.append(line)
        if line.strip():
            break
    first = seen[-1] if seen else ""
    return _reader_for(first), chain(seen, lines)


def _reader_for(first: str) -> LineReader:
    if _WIKIEXTRACTOR_HEAD.match(first):
        return read_wikiextractor
    if first.lstrip().startswith("{") and isinstance(_json_or_none(first), dict):
        return read_json_lines
    return read_text


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
            do="set preprocess.source.one_document_per to line (or paragraph) in params.yaml",
        )


def _json_object(line: str, place: str) -> dict[str, object]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        # The standard library's reader takes what orjson refuses but real files hold: NaN, half a surrogate pair.
        value = _json_or_none(line)
        if value is None:
            raise _not_an_object(place, f"{line.strip()[:80]} ({error})") from error
    if not isinstance(value, dict):
        raise _not_an_object(place, f"{type(value).__name__}: {line.strip()[:80]}")
    return value


def _json_or_none(line: str) -> object:
    try:
        return json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        return None


def _not_an_object(place: str, given: str) -> DataError:
    return DataError(
        f"{place}: not a JSON object",
        given=given,
        expected='one JSON object on each line, like {"text": "…"}',
        do="write one object per line (an array becomes lines with `jq -c '.[]' OLD > NEW`)",
    )


def _check_separator(header: list[str], delimiter: str, settings: LineSettings) -> None:
    if len(header) != 1 or header[0] == settings.fields.text:
        return
    found = next((sign for sign in _SEPARATORS if sign != delimiter and sign in header[0]), None)
    if found:
        raise DataError(
            f"{settings.file}, line 1: the fields are separated by {_SEPARATORS[found]}",
            given=header[0][:160],
            expected=f"fields with {_SEPARATORS[delimiter]} between",
            do=f"write the file again with {_SEPARATORS[delimiter]}, or name it .csv for commas, .tsv for tabs",
        )


def _csv_record(header: list[str], row: list[str], place: str) -> dict[str, object]:
    if len(row) != len(header):
        raise DataError(
            f"{place}: {len(row)} columns under a header of {len(header)}",
            given=f"{row}"[:160],
            expected=f"columns: {', '.join(header)}",
            do="put double quotes round fields that hold a separator, or mend the row",
        )
    return dict(zip(header, row, strict=True))
