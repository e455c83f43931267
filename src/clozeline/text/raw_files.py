"""Files of raw text, the portions that they are read in, and the settings that decide how they are read."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from clozeline.params import SourceParams


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file to read, or a range of its bytes; its name may tell more than its path."""

    path: Path
    name: str
    label: str
    """Label of its texts if the records have none."""
    quarantines: bool = False
    """Whether a bad record is set aside, instead of stopping the reading."""
    sha256: str = ""
    start: int = 0
    """First byte of the range: what begins before it belongs to the range before."""
    end: int | None = None
    """First byte behind the range; None: the end of the file."""

    @property
    def size_bytes(self) -> int:
        return (self.path.stat().st_size if self.end is None else self.end) - self.start


def total_bytes_of(files: Sequence[RawFile]) -> int:
    return sum(file.size_bytes for file in files)


@dataclass(frozen=True)
class Reading:
    """How files are read. The params themselves would make each worker import all params."""

    kind: str
    text_field: str
    label_field: str | None
    one_document_per: str

    @classmethod
    def of(cls, params: "SourceParams") -> Self:
        return cls(params.kind, params.text_field, params.label_field, params.one_document_per)

    @property
    def inputs(self) -> list[object]:
        return [*asdict(self).values()]


@dataclass(frozen=True)
class RawText:
    """Files in the order of their texts, and how they are read."""

    files: tuple[RawFile, ...]
    reading: Reading
    raw_bytes: int
    """Size of the text as its origin stores it, by which buckets are cut; 0 if unknown."""

    @property
    def total_bytes(self) -> int:
        return total_bytes_of(self.files)

    @property
    def decode_entities(self) -> bool:
        """Whether HTML entities in the text are dirt; false where the text may be about entities."""
        return self.reading.kind != "python-docs"
