"""Batches of raw units, prepared by workers or kept from an earlier run.

The key of a batch is a digest of its units and of all else that decides what becomes of them.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa

from clozeline.cluster.ledger import Done, Ledger
from clozeline.storage.fingerprints import code_of, fingerprint, versions_of
from clozeline.text.documents import BadRecord, DropReason
from clozeline.text.portions import CutBatch, cut_portions, portions_of, units_of
from clozeline.text.preparation import Batch, BatchCounts, PreparationSettings, prepare
from clozeline.text.raw_files import RawText
from clozeline.text.texts_on_disk import write_texts

_DECISIVE_PACKAGES = ("ftfy", "mwparserfromhell", "numpy", "orjson", "pyarrow", "rensa")
_CODE = ("artifacts/preprocess/clean_text.py", "records/files", "text", "words")
"""Folders and files of the package that decide a prepared batch."""
_TEXTS = "texts.arrow"


def versions_used() -> dict[str, str]:
    """Return the versions of the packages that decide the text besides the source and the params."""
    return versions_of(_DECISIVE_PACKAGES)


@dataclass(frozen=True)
class BatchRecord:
    """A batch that is done: its counts, and the file of its texts."""

    key: str
    texts: Path
    text_bytes: int
    """Size of the texts in memory, with their sketches."""
    stored_bytes: int
    """Size in the source, as it is stored."""
    is_found: bool
    counts: BatchCounts


def code_of_batches(settings: PreparationSettings) -> str:
    """Return a fingerprint of the code, the packages and the settings that decide a text."""
    return fingerprint(asdict(settings) | versions_used(), code_of(_CODE))


@dataclass
class ReadText:
    """What is known of the raw text when it is read."""

    shapes: Counter[str] = field(default_factory=Counter)
    """Unit of plain text (line, paragraph, file) → number of documents."""
    portions: set[str] = field(default_factory=set)
    """Keys of the portions that a later run need not read again."""


def prepared(raw: RawText, settings: PreparationSettings, ledger: Ledger, read: ReadText) -> Iterator[BatchRecord]:
    """Yield the batches in the order of the text; each is computed only if no earlier run kept it.

    Later portions are cut while the batches of earlier ones are prepared.

    Raises:
        DataError: the text is damaged, or not of its kind.
    """
    cut: deque[CutBatch] = deque()
    for record in ledger.run(_prepare, _items(raw, settings, ledger, read, cut), read=()):
        batch = cut.popleft()
        text_bytes, num_ordinals, num_read, num_split, dropped, altered, bad = record.facts
        counts = BatchCounts(
            num_ordinals,
            num_read,
            num_split,
            dropped=Counter({DropReason(reason): count for reason, count in dropped.items()}),
            altered=Counter(altered),
            bad=[BadRecord(place, reason) for place, reason in bad],
        )
        texts = record.folder / _TEXTS
        yield BatchRecord(record.key, texts, text_bytes, batch.stored_bytes, record.is_found, counts)
        if batch.frees:
            ledger.drop(batch.frees)


def _items(
    raw: RawText, settings: PreparationSettings, ledger: Ledger, read: ReadText, cut: deque[CutBatch]
) -> Iterator["_BatchItem"]:
    """Yield the batches to prepare, and note each in `cut`."""
    number = 0
    for portion in cut_portions(portions_of(raw.files, raw.reading), ledger):
        read.shapes.update(portion.shapes)
        if not portion.has_copies:
            read.portions.add(portion.key)
        for batch in portion.batches:
            cut.append(batch)
            yield _BatchItem(number, batch, settings)
            number += 1


@dataclass(frozen=True)
class _BatchItem:
    number: int
    batch: CutBatch
    settings: PreparationSettings

    @property
    def name(self) -> str:
        return f"batch {self.number}"

    @property
    def inputs(self) -> list[object]:
        return [self.batch.digest]

    @property
    def reads(self) -> list[Path]:
        return [self.batch.path, *self.batch.raw]


def _prepare(item: _BatchItem, folder: Path) -> Done:
    done = prepare(Batch(units_of(item.batch), item.settings))
    write_texts(folder / _TEXTS, [pa.Table.from_batches([done.texts])], compression="lz4")
    counts = done.counts
    dropped = {reason.value: count for reason, count in counts.dropped.items()}
    bad = [(record.place, record.reason) for record in counts.bad]
    numbers = done.texts.nbytes, counts.num_ordinals, counts.num_read, counts.num_split
    # The key does not tell at which lines bad records are.
    return Done([*numbers, dropped, counts.altered, bad], lasting=not bad)
