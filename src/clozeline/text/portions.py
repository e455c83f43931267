"""Portions of raw text: a task reads one, and cuts it into batches, so that no process reads all of the text.

A portion is a range of a file of JSON Lines or Parquet, or of a dump, another file as a whole, or several small files.
Files and sizes decide it, never the number of workers. The batches of a portion hold its units in their order, as
pickles: a worker reads what the file holds as it is from there, and other units (decompressed, parsed) from the pickle.
"""

import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Final, Self

from clozeline.cluster.ledger import Done, Ledger, Record
from clozeline.text.content_cuts import groups
from clozeline.text.documents import RawUnit
from clozeline.text.line_formats import JsonBlock
from clozeline.text.opening import is_divisible, opened
from clozeline.text.raw_files import RawFile, Reading, total_bytes_of

_PORTION_BYTES = 16_000_000
_MAX_PORTION_FILES = 1_000
_BATCH_BYTES = 1_000_000
_MAX_BATCH_UNITS = 2_000
_KEY_BYTES: Final = 16


@dataclass(frozen=True)
class PortionItem:
    number: int
    files: tuple[RawFile, ...]
    """Consecutive files, or one range of a file."""
    reading: Reading

    @property
    def name(self) -> str:
        return f"portion {self.number} of the raw text"

    @property
    def inputs(self) -> list[object]:
        # The pickles name the paths.
        told = [(one.sha256, one.start, one.end, one.label, one.quarantines, str(one.path)) for one in self.files]
        return [told, self.reading.inputs]

    @property
    def reads(self) -> list[Path]:
        return [one.path for one in self.files]


@dataclass(frozen=True)
class CutBatch:
    """A batch that is cut, and not yet prepared."""

    digest: str
    """Digest of its units, which does not tell their places."""
    path: Path
    stored_bytes: int
    """Its share of the stored bytes of the portion."""
    lines_later: int
    """By how many lines its blocks are later in the file than the portion counts."""
    raw: tuple[Path, ...]
    """Files of raw text that have units of the portion as they are."""
    frees: str | None
    """Key of the task that is of no use when the batch is prepared: its portion, if that made copies."""


@dataclass(frozen=True)
class CutPortion:
    key: str
    batches: list[CutBatch]
    num_lines: int
    """Number of lines of JSON Lines."""
    shapes: Counter[str]
    """Unit of plain text (line, paragraph, file) → number of documents."""
    has_copies: bool
    """Whether its files hold units themselves, not only their places in the raw text."""

    @classmethod
    def of(cls, item: PortionItem, record: Record, lines_before: int) -> Self:
        """Return the portion behind `lines_before` lines of the same file."""
        cuts, num_lines, shapes, has_copies = record.facts
        total, stored = max(sum(size for _, size in cuts), 1), total_bytes_of(item.files)
        batches = [
            CutBatch(
                digest,
                record.folder / _file_of(number),
                size * stored // total,
                max(lines_before - 1, 0),  # lines of a later range are counted from 2
                tuple(one.path for one in item.files) if num_lines else (),
                record.key if has_copies and number == len(cuts) - 1 else None,
            )
            for number, (digest, size) in enumerate(cuts)
        ]
        return cls(record.key, batches, num_lines, Counter(shapes), has_copies)


def portions_of(files: Sequence[RawFile], reading: Reading) -> list[PortionItem]:
    """Cut files into portions, in their order."""
    portions: list[tuple[RawFile, ...]] = []
    for is_divided, some in groupby(files, lambda file: _is_divided(file, reading)):
        if is_divided:
            portions += [(one,) for file in some for one in _ranges_of(file)]
        else:
            shares = ((file, bytes.fromhex(file.sha256), _share_of(file)) for file in some)
            portions += [tuple(file for file, _ in group) for group in groups(shares)]
    return [PortionItem(number, portion, reading) for number, portion in enumerate(portions)]


def _is_divided(file: RawFile, reading: Reading) -> bool:
    return file.size_bytes > _PORTION_BYTES and is_divisible(file, reading)


def _share_of(file: RawFile) -> float:
    return file.size_bytes / _PORTION_BYTES + 1 / _MAX_PORTION_FILES


def _ranges_of(file: RawFile) -> Iterator[RawFile]:
    size = file.size_bytes
    for start in range(0, size, _PORTION_BYTES):
        yield replace(file, start=start, end=min(start + _PORTION_BYTES, size))


def cut_portions(items: Sequence[PortionItem], ledger: Ledger) -> Iterator[CutPortion]:
    """Yield the portions in order, each cut by a task."""
    num_lines = 0
    for item, record in zip(items, ledger.run(_cut, items, read=()), strict=True):
        if not item.files[0].start:
            num_lines = 0
        portion = CutPortion.of(item, record, num_lines)
        num_lines += portion.num_lines
        yield portion


def _cut(item: PortionItem, folder: Path) -> Done:
    """Read a portion, and write each of its batches into a file; the facts are those of `CutPortion`.

    Raises:
        DataError: a file is damaged, or not of its kind.
    """
    source = opened(item.files, item.reading)
    cuts: list[tuple[str, int]] = []
    num_lines, has_copies = 0, False
    with closing(source.units):
        for members in groups(map(_member, source.units)):
            units = [unit for unit, _ in members]
            with (folder / _file_of(len(cuts))).open("wb") as file:
                pickle.dump(units, file, pickle.HIGHEST_PROTOCOL)
            digest = blake2b(b"".join(digest for _, digest in members), digest_size=_KEY_BYTES).hexdigest()
            cuts.append((digest, sum(unit.size_bytes for unit in units)))
            blocks = [unit.block for unit in units if isinstance(unit, JsonBlock)]
            num_lines += sum(block.content.count(b"\n") for block in blocks)
            has_copies = has_copies or len(blocks) < len(units) or not all(block.is_stored for block in blocks)
    return Done([cuts, num_lines, source.shapes, has_copies])


def units_of(batch: CutBatch) -> list[RawUnit]:
    """Return the units of a batch, with their places in the file."""
    units: list[RawUnit] = pickle.loads(batch.path.read_bytes())  # noqa: S301  # our own bytes, of this run or the last
    return [unit.later(batch.lines_later) if isinstance(unit, JsonBlock) else unit for unit in units]


def _member(unit: RawUnit) -> tuple[RawUnit, bytes, float]:
    digest = blake2b(unit.identity(), digest_size=_KEY_BYTES).digest()
    return unit, digest, unit.size_bytes / _BATCH_BYTES + 1 / _MAX_BATCH_UNITS


def _file_of(number: int) -> str:
    return f"units-{number:06d}.pickle"
