"""Partitions of a split of clean text: runs of row groups of a file, each of them a task.

The content of the files decides them, never the number of workers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from clozeline.artifacts.preprocess.clean_text import TEXT, RowGroup, columns_of, files_in, row_groups

_PARTITION_BYTES = 8_000_000
"""Least size of a partition in bytes of text: large beside the two row groups that a process reads anyway."""


@dataclass(frozen=True)
class Partition:
    path: Path
    groups: range
    num_rows: int
    text_bytes: int
    doc_ids: tuple[str, str] | None
    """Least and greatest `doc_id`; None if the file does not say."""
    digest: str
    """Of the texts, as the file stores them."""

    @property
    def reads(self) -> tuple[Path, ...]:
        return (self.path,)

    def columns(self, *names: str) -> Iterator[list[Any]]:
        """Yield columns as `columns_of` does. Raises what `columns_of` raises."""
        return columns_of(self.path, *names, groups=self.groups)

    def texts(self) -> Iterator[list[str]]:
        """Yield the texts in batches. Raises what `columns_of` raises."""
        return (texts.to_pylist() for (texts,) in self.columns(TEXT))


def partitions_of(path: Path) -> list[Partition]:
    """Return the partitions of a split, in order.

    Raises:
        ArtifactError: a file is missing or damaged, or has no column of texts.
    """
    return [partition for file in files_in(path) for partition in _partitions_of_file(file)]


def _partitions_of_file(path: Path) -> list[Partition]:
    groups = row_groups(path)
    found, first, text_bytes = [], 0, 0
    for end, group in enumerate(groups, 1):
        text_bytes += group.text_bytes
        if text_bytes >= _PARTITION_BYTES or end == len(groups):
            found.append(_partition(path, range(first, end), groups[first:end]))
            first, text_bytes = end, 0
    return found


def _partition(path: Path, places: range, groups: list[RowGroup]) -> Partition:
    bounds = [bound for group in groups for bound in group.doc_ids or ()]
    return Partition(
        path,
        places,
        num_rows=sum(group.num_rows for group in groups),
        text_bytes=sum(group.text_bytes for group in groups),
        doc_ids=(min(bounds), max(bounds)) if len(bounds) == 2 * len(groups) else None,
        digest=blake2b("".join(group.digest for group in groups).encode(), digest_size=16).hexdigest(),
    )
