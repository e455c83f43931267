"""Batches of raw units, prepared by workers or kept from an earlier run.

The key of a batch is a digest of its units and of all else that decides what becomes of them. Content also decides
where a batch ends, so a change of the source leaves the batches before it, and those soon after it, as they were.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import groupby

import pyarrow as pa

from clozeline.machine.workers import Workers
from clozeline.storage.fingerprints import code_of, fingerprint, versions_of
from clozeline.storage.kept_results import KeptResults
from clozeline.text.documents import DropReason, RawUnit
from clozeline.text.preparation import Batch, PreparationSettings, PreparedBatch, prepare

_LOG = logging.getLogger(__name__)
_DECISIVE_PACKAGES = ("ftfy", "mwparserfromhell", "numpy", "orjson", "pyarrow", "rensa")
_CODE = ("artifacts/preprocess/clean_text.py", "records/files", "text", "words")
"""Folders and files of the package that decide a prepared batch."""
_BATCH_BYTES = 1_000_000
_MAX_BATCH_UNITS = 2_000
_KEY_BYTES = 16
_COUNTS = b"counts"
_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


def versions_used() -> dict[str, str]:
    """Return the versions of the packages that decide the text besides the source and the params."""
    return versions_of(_DECISIVE_PACKAGES)


@dataclass(frozen=True)
class _KeyedBatch:
    batch: Batch
    key: str
    kept: KeptResults


class PreparedBatches:
    """The batches of a source; each is computed only if no earlier run kept it."""

    def __init__(self, settings: PreparationSettings, kept: KeptResults) -> None:
        self._settings = settings
        self._kept = kept
        self._facts = fingerprint(asdict(settings) | versions_used(), code_of(_CODE)).encode()
        self._keys: set[str] = set()
        self._num_found = 0

    def of(self, units: Iterable[RawUnit], workers: Workers) -> Iterator[PreparedBatch]:
        """Yield the batches in the order of `units`."""
        for kind, group in groupby(self._looked_up(units), type):
            if kind is PreparedBatch:
                yield from (item for item in group if isinstance(item, PreparedBatch))
            else:
                yield from workers.map(_prepare, (item for item in group if isinstance(item, _KeyedBatch)))

    def keep_only_these(self) -> None:
        """Remove the batches that this run did not need, so that the kept ones do not outgrow the source."""
        _LOG.info("%d of %d batches of text kept from earlier runs", self._num_found, len(self._keys))
        self._kept.keep_only(self._keys)

    def _looked_up(self, units: Iterable[RawUnit]) -> Iterator[PreparedBatch | _KeyedBatch]:
        for content, batch_units in _cut(units):
            key = blake2b(self._facts + content, digest_size=_KEY_BYTES).hexdigest()
            self._keys.add(key)
            result = self._kept.read(key)
            self._num_found += result is not None
            yield _KeyedBatch(Batch(batch_units, self._settings), key, self._kept) if result is None else _read(result)


def _cut(units: Iterable[RawUnit]) -> Iterator[tuple[bytes, list[RawUnit]]]:
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
            yield b"".join(digests), waiting
            waiting, digests, size = [], [], 0.0
    if waiting:
        yield b"".join(digests), waiting


def _prepare(item: _KeyedBatch) -> PreparedBatch:
    prepared = prepare(item.batch)
    if not prepared.bad:  # the key does not tell at which lines they are
        item.kept.write(item.key, _written(prepared))
    return prepared


def _written(batch: PreparedBatch) -> memoryview:
    dropped = {reason.value: count for reason, count in batch.dropped.items()}
    counts = json.dumps([batch.num_ordinals, batch.num_read, batch.num_split, dropped, batch.altered]).encode()
    sink = pa.BufferOutputStream()
    schema = batch.texts.schema.with_metadata({_COUNTS: counts})
    with pa.ipc.new_stream(sink, schema, options=_WRITE_OPTIONS) as stream:
        stream.write_batch(batch.texts)
    return memoryview(sink.getvalue())


def _read(result: memoryview) -> PreparedBatch:
    with pa.ipc.open_stream(pa.py_buffer(result)) as stream:
        counts = json.loads(stream.schema.metadata[_COUNTS])
        texts = stream.read_next_batch().replace_schema_metadata(None)
    num_ordinals, num_read, num_split, dropped, altered = counts
    reasons = Counter({DropReason(reason): count for reason, count in dropped.items()})
    return PreparedBatch(texts, num_ordinals, num_read, num_split, reasons, Counter(altered))
