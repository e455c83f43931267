"""Documents, the sources that yield them, and the reasons for dropping one."""

import pickle
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, Self

from clozeline.errors import DataError
from clozeline.records.files.meter import Meter


class DropReason(StrEnum):
    """Reason why a text is not in the corpus. Every text that is read is kept or has one reason."""

    EMPTY = "empty"
    UNREADABLE = "unreadable"
    REDIRECT = "redirect"
    NOT_AN_ARTICLE = "not_an_article"
    TOO_SHORT = "too_short"
    EXACT_DUPLICATE = "exact_duplicate"
    NEAR_DUPLICATE = "near_duplicate"
    TWO_SPLITS = "two_splits"
    """It resembles earlier texts of two splits."""
    FULL_GROUP = "full_group"
    """It resembles a group of validation or holdout that takes no more texts."""
    BAD_RECORD = "bad_record"
    """Its record cannot be read, and `on_bad_record` says to set it aside."""
    FORGOTTEN = "forgotten"
    """It consists of texts that must be forgotten."""


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that was set aside."""

    place: str
    """File and line, or file and row."""
    reason: str

    @classmethod
    def of(cls, error: DataError) -> Self:
        """Return the record of an error whose `problem` is `PLACE: REASON`. It repeats nothing of the
        content, which is in `given`."""
        place, _, reason = error.problem.rpartition(": ")
        return cls(place, f"{reason}; expected: {error.expected}")


@dataclass(frozen=True, slots=True)
class Document:
    """One text with its label (`source`) and its name within that label (`title`, may be empty)."""

    text: str
    source: str
    title: str = ""
    dropped: DropReason | None = None
    """Set by a source that knows that this text must not be used; `text` is then empty."""
    bad: BadRecord | None = None
    """The record in place of which this document is counted as dropped."""

    @classmethod
    def in_place_of(cls, error: DataError, source: str) -> Self:
        return cls("", source, dropped=DropReason.BAD_RECORD, bad=BadRecord.of(error))

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


@dataclass(frozen=True)
class Source:
    """Opened files: their units in a stable order, and the progress of reading."""

    units: Generator[RawUnit, None, None]
    total_bytes: int
    """Total of what `meter` counts."""
    meter: Meter = field(default_factory=Meter)
    shapes: Counter[str] = field(default_factory=Counter)
    """Unit of plain text (line, paragraph, file) → number of documents that were read so far."""
