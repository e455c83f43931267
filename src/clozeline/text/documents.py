"""What a source gives, and what can become of it."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from clozeline.records.meter import Meter


class DropReason(StrEnum):
    """Why a text is not in the corpus; every text that is read is kept or has one of these."""

    EMPTY = "empty"
    UNREADABLE = "unreadable"
    REDIRECT = "redirect"
    NOT_AN_ARTICLE = "not_an_article"
    TOO_SHORT = "too_short"
    EXACT_DUPLICATE = "exact_duplicate"
    NEAR_DUPLICATE = "near_duplicate"


@dataclass(frozen=True, slots=True)
class Document:
    """One text with its label (`source`) and its name within it (`title`, may be empty)."""

    text: str
    source: str
    title: str = ""
    dropped: DropReason | None = None
    """Set by a source that knows why this text must not be used; `text` is then empty."""

    @property
    def size_bytes(self) -> int:
        return len(self.text)

    def documents(self) -> tuple["Document"]:
        return (self,)


class RawUnit(Protocol):
    """What the reading process hands to a worker: cheap to read, picklable, and dear to turn into documents."""

    @property
    def size_bytes(self) -> int:
        """About how much work it is; batches are made equal by it."""

    def documents(self) -> Iterable[Document]:
        """Called in a worker."""


@dataclass(frozen=True)
class Source:
    """An opened source: its units in a stable order, and how far along they are."""

    units: Generator[RawUnit, None, None]
    total_bytes: int
    """Of what `meter` counts; 0 when nobody can say."""
    meter: Meter = field(default_factory=Meter)
    decode_entities: bool = True
    """HTML entities in the text are dirt (false where the text may speak about them)."""
