"""Documents, the sources that yield them, and the reasons for dropping one.

Records of structured files (JSON objects, rows of CSV and Parquet, examples of the hub) become documents by their
fields; so do the docstrings of a snapshot. bad_records.jsonl beside the clean text has the place and the reason of each
record that was set aside.
"""

import json
import pickle
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, Self

from clozeline.params.text import SourceParams
from clozeline.records.reading.files import Fields, PlacedRecord
from clozeline.records.reading.streams import LineBlock, OnBad, parsed, read_blocks, stop, whole
from clozeline.system.errors import DataError

_TEXT_KNOB = "source.text_field"
_LABEL_KNOB = "source.label_field"

BAD_RECORDS = "bad_records.jsonl"


class DropReason(StrEnum):
    """Reason why a text is not in the corpus. Every text that is read is kept or has one reason."""

    EMPTY = "empty"
    UNREADABLE = "unreadable"
    REDIRECT = "redirect"
    NOT_AN_ARTICLE = "not_an_article"
    TOO_SHORT = "too_short"
    EXACT_DUPLICATE = "exact_duplicate"
    NEAR_DUPLICATE = "near_duplicate"
    TWO_SPLITS = "two_splits"  # it resembles earlier texts of two splits
    FULL_GROUP = "full_group"  # it resembles a group of validation or holdout that takes no more texts
    BAD_RECORD = "bad_record"  # its record cannot be read, and `on_bad_record` says to set it aside
    FORGOTTEN = "forgotten"  # it consists of texts that must be forgotten


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that was set aside."""

    place: str  # file and line, or file and row
    reason: str


@dataclass(frozen=True, slots=True)
class Document:
    """One text with its label (`source`) and its name within that label (`title`, may be empty)."""

    text: str
    source: str
    title: str = ""
    # Set by a source that knows that this text must not be used; `text` is then empty.
    dropped: DropReason | None = None
    bad: BadRecord | None = None  # the record in place of which this document is counted as dropped

    @classmethod
    def in_place_of(cls, error: DataError, source: str) -> Self:
        """Return the document of an error whose `problem` is `PLACE: REASON`. It repeats nothing of the content,
        which is in `given`.
        """
        place, _, reason = error.problem.rpartition(": ")
        bad = BadRecord(place, f"{reason}; expected: {error.expected}")
        return cls("", source, dropped=DropReason.BAD_RECORD, bad=bad)

    @property
    def size_bytes(self) -> int:
        return len(self.text)

    def identity(self) -> bytes:
        return pickle.dumps((self.text, self.source, self.title, self.dropped, *([self.bad] if self.bad else [])))

    def documents(self) -> tuple["Document"]:
        return (self,)


class RawUnit(Protocol):
    """Unit of work for a worker: cheap to read, picklable, expensive to turn into documents."""

    @property
    def size_bytes(self) -> int:
        """Approximate amount of work, by which batches are balanced."""

    def identity(self) -> bytes:
        """Return bytes that differ if the documents do; they do not name the place of the unit."""

    def documents(self) -> Iterable[Document]:
        """Return the documents of the unit; called in a worker."""


def write_bad_records(path: Path, records: Iterable[BadRecord], named: Callable[[str], str]) -> None:
    """Write a line for each bad record. Without any, there is no file.

    `named` turns the place of a record in the snapshot into its place in the source.
    """
    told = ({"place": named(record.place), "reason": record.reason} for record in records)
    if lines := [json.dumps(one, ensure_ascii=False) + "\n" for one in told]:
        path.write_text("".join(lines), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file to read, or a range of its bytes; its name may tell more than its path."""

    path: Path
    name: str
    label: str  # label of its texts if the records have none
    quarantines: bool = False  # whether a bad record is set aside, instead of stopping the reading
    sha256: str = ""
    start: int = 0  # first byte of the range: what begins before it belongs to the range before
    end: int | None = None  # first byte behind the range; None: the end of the file

    @property
    def size_bytes(self) -> int:
        return (self.path.stat().st_size if self.end is None else self.end) - self.start


@dataclass(frozen=True)
class FileReading:
    """How files are read. The params themselves would make each worker import all params."""

    kind: str
    text_field: str
    label_field: str | None
    one_document_per: str

    @classmethod
    def of(cls, params: SourceParams) -> Self:
        return cls(params.kind, params.text_field, params.label_field, params.one_document_per)

    @property
    def fields(self) -> Fields:
        """Knob → field of the text and of its label. Without a label field the label is the file's name."""
        return {_TEXT_KNOB: self.text_field} | ({} if self.label_field is None else {_LABEL_KNOB: self.label_field})


@dataclass(frozen=True)
class OpenFile:
    """A file, and how it is read."""

    file: RawFile
    reading: FileReading
    # Counts the documents of plain text by their unit; shared by the files of a source.
    shapes: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        return str(self.file.path)

    def with_bad(self, read: Callable[[OnBad], Iterable[Document]]) -> Generator[Document, None, None]:
        """Yield the documents that `read` yields, then those in place of the bad records that it found, if bad records
        are set aside.
        """
        bad: list[DataError] = []
        yield from read(bad.append if self.file.quarantines else stop)
        yield from (Document.in_place_of(error, self.file.label) for error in bad)

    def documents_of(self, rows: Iterable[PlacedRecord], on_bad: OnBad) -> Iterator[Document]:
        """Yield a document for each row. A null text or label counts as empty.

        Raises:
            DataError: a text is not a string, unless `on_bad` takes the error.
        """
        text_field, label_field = self.reading.text_field, self.reading.label_field
        for place, record in rows:
            text = record[text_field]
            if text is not None and not isinstance(text, str):
                on_bad(_not_text(place, text_field, text))
                continue
            label = self.file.label if label_field is None else record[label_field]
            yield Document(text or "", "" if label is None else whole(str(label)))


def _not_text(place: str, text_field: str, text: object) -> DataError:
    return DataError(
        f"{place}: field `{text_field}` is not text",
        given=f"{type(text).__name__}: {str(text)[:80]}",
        expected="a string, or null for a record without text",
        do=f"set `{_TEXT_KNOB}` to the field that holds the text",
    )


@dataclass(frozen=True)
class RawText:
    """Files in the order of their texts, and how they are read."""

    files: tuple[RawFile, ...]
    reading: FileReading
    raw_bytes: int  # size of the text as its origin stores it, by which buckets are cut; 0 if unknown

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def decode_entities(self) -> bool:
        """Whether HTML entities in the text are dirt; false where the text may be about entities."""
        return self.reading.kind != "python-docs"


@dataclass(frozen=True, slots=True)
class DocstringBlock:
    """Lines of a shard, which a worker parses."""

    block: LineBlock

    @property
    def size_bytes(self) -> int:
        return len(self.block.content)

    def identity(self) -> bytes:
        return pickle.dumps((self.block.content, self.block.first_line == 1))

    def documents(self) -> Iterator[Document]:
        for line in self.block.lines():
            if line:
                record = parsed(line)
                dropped = DropReason.UNREADABLE if record.get("unreadable") else None
                yield Document(record["text"], record["source"], record["title"], dropped)


def docstring_blocks(file: RawFile) -> Iterator[RawUnit]:
    """Yield the blocks of a shard of docstrings."""
    with closing(read_blocks(file.path)) as blocks:
        yield from map(DocstringBlock, blocks)
