"""Table of the kinds of source: how their files are read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from clozeline.text.docstrings import read_docstrings
from clozeline.text.documents import Source
from clozeline.text.dump_ranges import has_ranges as dump_has_ranges
from clozeline.text.files import has_ranges, read_files
from clozeline.text.raw_files import RawFile, Reading
from clozeline.text.wikipedia import read_dumps


def _never(file: RawFile) -> bool:
    return False


@dataclass(frozen=True)
class _Kind:
    read: Callable[[Sequence[RawFile], Reading], Source]
    is_divisible: Callable[[RawFile], bool] = _never


_FILES: Final = _Kind(read_files, has_ranges)
KINDS: Final[Mapping[str, _Kind]] = MappingProxyType(
    {
        "python-docs": _Kind(read_docstrings),
        "files": _FILES,
        "wikipedia-xml": _Kind(read_dumps, dump_has_ranges),
        "hub": _FILES,
        "sql": _FILES,
    }
)


def opened(files: Sequence[RawFile], reading: Reading) -> Source:
    """Open files in their order.

    Raises:
        DataError: raised while reading: a file is damaged, or not of its kind.
    """
    return KINDS[reading.kind].read(files, reading)


def is_divisible(file: RawFile, reading: Reading) -> bool:
    """Return whether a range of the file's bytes can be read."""
    return KINDS[reading.kind].is_divisible(file)
