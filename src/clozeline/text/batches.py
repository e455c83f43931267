"""Batches of raw units, prepared by workers or kept from an earlier run.

The key of a batch is a digest of its units and of all else that decides what becomes of them. Content also decides
where a batch ends, so a change of the source leaves the batches before it, and those soon after it, as they were.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa

from clozeline.cluster.ledger import Done, Ledger
from clozeline.storage.fingerprints import code_of, fingerprint, versions_of
from clozeline.text.documents import BadRecord, DropReason, RawUnit
from clozeline.text.preparation import Batch, BatchCounts, PreparationSettings, prepare
from clozeline.text.texts_on_disk import write_texts

_DECISIVE_PACKAGES = ("ftfy", "mwparserfromhell", "numpy", "orjson", "pyarrow", "rensa")
_CODE = ("artifacts/preprocess/clean_text.py", "records/files", "text", "words")
"""Folders and files of the package that decide a prepared batch."""
_BATCH_BYTES = 1_000_000
_MAX_BATCH_UNITS = 2_000
_KEY_BYTES = 16
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
    is_found: bool
    counts: BatchCounts


def code_of_batches(settings: PreparationSettings) -> str:
    """Return a fingerprint of the code, the packages and the settings that decide a text."""
    return fingerprint(asdict(settings) | versions_used(), code_of(_CODE))


def prepared(units: Iterable[RawUnit], settings: PreparationSettings, ledger: Ledger) -> Iterator[BatchRecord]:
    """Yield the batches in the order of `units`; each is computed only if no earlier run kept it."""
    cut = enumerate(_cut(units))
    items = (_BatchItem(number, digest, Batch(some, settings)) for number, (digest, some) in cut)
    for record in ledger.run(_prepare, items):
        text_bytes, num_ordinals, num_read, num_split, dropped, altered, bad = record.facts
        counts = BatchCounts(
            num_ordinals,
            num_read,
            num_split,
            dropped=Counter({DropReason(reason): count for reason, count in dropped.items()}),
            altered=Counter(altered),
            bad=[BadRecord(place, reason) for place, reason in bad],
        )
        yield BatchRecord(record.key, record.folder / _TEXTS, text_bytes, record.is_found, counts)


@dataclass(frozen=True)
class _BatchItem:
    number: int
    digest: str
    batch: Batch

    @property
    def name(self) -> str:
        return f"batch {self.number}"

    @property
    def inputs(self) -> list[object]:
        return [self.digest]


def _cut(units: Iterable[RawUnit]) -> Iterator[tuple[str, list[RawUnit]]]:
    """Yield batches of about equal work, each with a digest of its content.

    From a quarter of the wanted size on, a batch ends at each unit with a chance that grows with the unit; the draw is
    the unit's digest.
    """
    waiting: list[RawUnit] = []
    digests: list[bytes] = []
    size = 0.0
    for unit in units:
        digest = blake2b(unit.identity(), digest_size=_KEY_BYTES).digest()
        waiting.append(unit)
        digests.append(digest)
        of_unit = unit.size_bytes / _BATCH_BYTES + 1 / _MAX_BATCH_UNITS
        size += of_unit
        if size >= 2 or (size >= 0.25 and int.from_bytes(digest[:4]) < 2 * of_unit * 2**32):
            yield _digest(digests), waiting
            waiting, digests, size = [], [], 0.0
    if waiting:
        yield _digest(digests), waiting


def _digest(digests: list[bytes]) -> str:
    return blake2b(b"".join(digests), digest_size=_KEY_BYTES).hexdigest()


def _prepare(item: _BatchItem, folder: Path) -> Done:
    done = prepare(item.batch)
    write_texts(folder / _TEXTS, [pa.Table.from_batches([done.texts])], compression="lz4")
    counts = done.counts
    dropped = {reason.value: count for reason, count in counts.dropped.items()}
    bad = [(record.place, record.reason) for record in counts.bad]
    numbers = done.texts.nbytes, counts.num_ordinals, counts.num_read, counts.num_split
    # The key does not tell at which lines bad records are.
    return Done([*numbers, dropped, counts.altered, bad], lasting=not bad)
