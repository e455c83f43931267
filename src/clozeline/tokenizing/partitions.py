"""Partitions of a file of clean text: runs of row groups, each of them a task.

The content of the file decides them, never the number of workers.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, TypeVar

from clozeline.artifacts.preprocess.clean_text import TEXT, RowGroup, columns_of, row_groups

Item = TypeVar("Item")
Result = TypeVar("Result")

_PARTITION_BYTES = 8_000_000
"""Least size of a partition in bytes of text: large beside the two row groups that a process reads anyway."""
TEXTS_A_RANGE = 1000
_PREFIX_DIGITS = 8


class Spread(Protocol):
    """Way to run a function over items: `map` in this process, or another that returns the same in the same order."""

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]:
        """Return the results in the order of `items`."""


@dataclass(frozen=True)
class Partition:
    path: Path
    groups: range
    num_rows: int
    text_bytes: int
    num_ranges: int
    """Number of ranges into which the keys of the whole file are cut. No range has texts of two partitions."""

    def columns(self, *names: str) -> Iterator[list[Any]]:
        """Yield columns as `columns_of` does. Raises what `columns_of` raises."""
        return columns_of(self.path, *names, groups=self.groups)

    def texts(self) -> Iterator[list[str]]:
        """Yield the texts in batches. Raises what `columns_of` raises."""
        return (texts.to_pylist() for (texts,) in self.columns(TEXT))


def partitions_of(path: Path) -> list[Partition]:
    """Return the partitions of a file, in order.

    Raises:
        ArtifactError: the file is missing or damaged, or has no column of texts.
    """
    groups = row_groups(path)
    num_ranges = 1 << (sum(group.num_rows for group in groups) // TEXTS_A_RANGE).bit_length()
    found, first = [], 0
    for end in _ends(groups, num_ranges):
        here = groups[first:end]
        num_rows, text_bytes = sum(group.num_rows for group in here), sum(group.text_bytes for group in here)
        found.append(Partition(path, range(first, end), num_rows, text_bytes, num_ranges))
        first = end
    return found


def range_of(doc_id: str, num_ranges: int) -> int:
    """Return the number of the range of keys that holds `doc_id`."""
    try:
        return int(doc_id[:_PREFIX_DIGITS], 16) * num_ranges >> 4 * _PREFIX_DIGITS
    except ValueError:  # not made by stage preprocess
        return 0


def _ends(groups: list[RowGroup], num_ranges: int) -> Iterator[int]:
    """Yield the number of the row group after each partition."""
    bounds = [[range_of(doc_id, num_ranges) for doc_id in group.doc_ids or ("", "")] for group in groups]
    highest_before = list(accumulate((high for _, high in bounds), max))
    lowest_after = list(accumulate((low for low, _ in reversed(bounds)), min))[::-1]
    text_bytes = 0
    for number, group in enumerate(groups, 1):
        text_bytes += group.text_bytes
        is_last = number == len(groups)
        if is_last or (text_bytes >= _PARTITION_BYTES and highest_before[number - 1] < lowest_after[number]):
            yield number
            text_bytes = 0
