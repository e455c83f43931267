"""The clean, split corpus is built from raw text, in memory that hardly grows with the text.

The kept texts of consecutive buckets are a range of keys, which goes into one Parquet file of each split. Equal texts
give equal bytes.
"""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import groupby, pairwise
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from clozeline.cluster.ledger import Done, FinishedTask, Item, Ledger
from clozeline.corpus.cleaning import preparation
from clozeline.corpus.cleaning.buckets import (
    FILES_OF_COLUMNS,
    SORTED,
    SketchedBucket,
    num_buckets_for,
    num_ranges_for,
    sort_item,
    spread_items,
)
from clozeline.corpus.cleaning.documents import BAD_RECORDS, BadRecordWriter, DropReason, RawText
from clozeline.corpus.cleaning.near_duplicates import Edges, Sketches, similar_pairs
from clozeline.corpus.cleaning.splits import KEPT, SplitDecision, SplitShares, check_sides, decide
from clozeline.params.text import PreprocessParams
from clozeline.records import clean_text
from clozeline.records.snapshot import NOTHING, Forgotten
from clozeline.records.words.shingles import Banding
from clozeline.system.arrays import DiskArrays, chunks
from clozeline.system.errors import DataError
from clozeline.system.files import link_or_copy
from clozeline.system.progress import ProgressBar
from clozeline.system.workers import Workers

_LOG = logging.getLogger(__name__)

_ROW_GROUP_BYTES = 2_000_000
_KEYS_A_STEP_BITS = 7
"""Row groups end between ranges of keys or between buckets. There are 2 to the power of this many ranges."""

_SOURCES: Final = "sources.json"
"""Labels of the texts of each split."""


@dataclass
class TextSize:
    """Size of the texts of a split, in one file or in all."""

    documents: int = 0
    characters: int = 0
    bytes: int = 0
    sources: set[str] = field(default_factory=set)

    def add(self, documents: int, characters: int, num_bytes: int, sources: Iterable[str]) -> None:
        self.documents += documents
        self.characters += characters
        self.bytes += num_bytes
        self.sources.update(sources)

    def metrics(self) -> clean_text.SplitMetrics:
        return clean_text.SplitMetrics(
            documents=self.documents, characters=self.characters, bytes=self.bytes, sources=len(self.sources)
        )


@dataclass
class _Part:
    """The file of a split."""

    writer: pq.ParquetWriter
    size: TextSize = field(default_factory=TextSize)
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0

    def append(self, texts: pa.Table) -> None:
        if not len(texts):
            return
        num_characters = pc.sum(pc.utf8_length(texts[clean_text.TEXT])).as_py()
        num_bytes = pc.sum(pc.binary_length(texts[clean_text.TEXT])).as_py()
        self.size.add(len(texts), num_characters, num_bytes, texts[clean_text.SOURCE].unique().to_pylist())
        self.waiting.append(texts)
        self.waiting_bytes += num_bytes
        if self.waiting_bytes >= _ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.waiting:
            texts = pa.concat_tables(self.waiting).combine_chunks()
            self.writer.write_table(texts, row_group_size=len(texts))
            self.waiting, self.waiting_bytes = [], 0


class CleanWriter:
    """Writes `<split>.parquet` into a folder, with rows in the order of their keys, which is a shuffle."""

    def __init__(self, folder: Path) -> None:
        self._open = ExitStack()
        self.parts = {
            name: _Part(
                self._open.enter_context(
                    pq.ParquetWriter(
                        clean_text.file_of(folder, name),
                        clean_text.SCHEMA,
                        compression="zstd",
                        use_dictionary=[clean_text.SOURCE],
                    )
                )
            )
            for name in clean_text.SPLITS
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            for part in self.parts.values():
                part.flush()
        self._open.close()

    def append(self, texts: pa.Table, sides: NDArray[np.uint8]) -> None:
        """Write each text (columns of `PREPARED`, keys rising) to the split whose number `sides` holds."""
        keys = texts["key"].to_pylist()
        step_N = np.array([key[0] >> 8 - _KEYS_A_STEP_BITS for key in keys], dtype=np.int64)
        bounds = [0, *(np.flatnonzero(np.diff(step_N)) + 1).tolist(), len(keys)]
        doc_ids = pa.array([key.hex() for key in keys], pa.string())
        clean = pa.table([doc_ids, *(texts[name] for name in clean_text.SCHEMA.names[1:])], clean_text.SCHEMA)
        for start, end in pairwise(bounds):
            for side, part in enumerate(self.parts.values()):
                part.append(clean.slice(start, end - start).filter(pa.array(sides[start:end] == side)))


def range_items(
    buckets: Sequence[SketchedBucket], kept_N: NDArray[np.bool_], sides_N: NDArray[np.uint8], buckets_of_range: int
) -> dict[int, Item]:
    """Return number → task of the ranges that have texts, in order.

    Args:
        buckets: the buckets that have any text, in order.
        kept_N: whether each of their texts is kept.
        sides_N: number of the split of each text.
        buckets_of_range: number of buckets of a range, with those that are empty.
    """
    items, start = {}, 0
    for number, group in groupby(buckets, lambda bucket: bucket.number // buckets_of_range):
        some = list(group)
        end = start + sum(bucket.num_texts for bucket in some)
        kept, sides = np.array(kept_N[start:end]), np.array(sides_N[start:end])
        fate = blake2b(kept.tobytes() + sides.tobytes(), digest_size=16).hexdigest()
        texts = [bucket.folder / SORTED for bucket in some]
        inputs = [[bucket.key for bucket in some], fate]
        items[number] = Item(f"range {number} of keys", inputs, texts, partial(write_range, texts, kept, sides))
        start = end
    assert start == len(kept_N), (start, len(kept_N))
    return items


def write_range(buckets: Sequence[Path], kept_N: NDArray[np.bool_], sides_N: NDArray[np.uint8], folder: Path) -> Done:
    """Write one file of each split; the facts are the texts, characters and bytes of each."""
    done = 0
    with CleanWriter(folder) as clean:
        for bucket in buckets:
            texts = preparation.read_texts(bucket)
            chosen = slice(done, done + len(texts))
            clean.append(texts.filter(kept_N[chosen]), sides_N[chosen][kept_N[chosen]])
            done += len(texts)
    sizes = {split: part.size for split, part in clean.parts.items()}
    sources = {split: sorted(size.sources) for split, size in sizes.items()}
    (folder / _SOURCES).write_text(json.dumps(sources), encoding="utf-8")
    return Done({split: [size.documents, size.characters, size.bytes] for split, size in sizes.items()})


@dataclass
class _Counts:
    read: int = 0
    split: int = 0
    ordinals: int = 0
    batches: list[preparation.BatchRecord] = field(default_factory=list)
    dropped: Counter[DropReason] = field(default_factory=Counter)
    altered: Counter[str] = field(default_factory=Counter)
    raw: preparation.ReadText = field(default_factory=preparation.ReadText)

    def dropped_by_reason(self) -> dict[str, int]:
        return {reason.value: self.dropped[reason] for reason in DropReason}


@dataclass(frozen=True)
class _Placed:
    """Fate of each text, in the order of the buckets (N texts)."""

    kept_N: NDArray[np.bool_]
    sides_N: NDArray[np.uint8]
    num_kept: int
    similarity: clean_text.SimilarityMetrics


def build_corpus(
    raw: RawText,
    params: PreprocessParams,
    *,
    seed: int,
    out: Path,
    work: Path,
    workers: Workers,
    forgotten: Forgotten = NOTHING,
    named: Callable[[str], str] = str,
) -> clean_text.CorpusMetrics:
    """Clean, deduplicate and split all texts of `raw` into the empty folder `out`.

    The files of the tasks wait in `work` until the end, arrays in a spool inside `out`, which is removed then. The
    result depends neither on `workers`, which are released before the writing, nor on what earlier runs left in
    `work`. Bad records that the source set aside are listed in `BAD_RECORDS`; `named` names their files.

    Raises:
        DataError: the source holds no text, or too little to split.
    """
    spool = out / "spool"
    spool.mkdir()
    settings = preparation.PreparationSettings.of(params, forgotten, decode_entities=raw.decode_entities)
    ledger = Ledger(work, preparation.code_of_batches(settings), workers)
    with BadRecordWriter(out / BAD_RECORDS, named) as bad:
        counts = _read(raw, settings, ledger, bad)
    buckets = _buckets(raw, seed, counts, ledger)
    _check_any(buckets, counts, raw, params)
    sketches = Sketches.of(buckets, Banding.finding(params.same_side_similarity).num_bands, spool / "sketches")
    decision = _decide(sketches, params, counts, ledger)
    splits = _write(buckets, decision, out, ledger, raw.raw_bytes)
    workers.release()
    shutil.rmtree(spool)
    num_found = sum(batch.is_found for batch in counts.batches)
    _LOG.info("%d of %d batches of text kept from earlier runs", num_found, len(counts.batches))
    _tell_shape(counts.raw.shapes)
    ledger.keep_only(counts.raw.portions | {batch.key for batch in counts.batches})
    return clean_text.CorpusMetrics(
        documents_read=counts.read,
        documents_split=counts.split,
        added_by_splitting=counts.ordinals - counts.read,
        documents_in=counts.ordinals,
        kept=decision.num_kept,
        dropped=counts.dropped_by_reason(),
        altered={kind: counts.altered[kind] for kind in preparation.ALTERATIONS},
        splits=splits,
        similarity=decision.similarity,
        versions=preparation.versions_used(),
    )


def _read(raw: RawText, settings: preparation.PreparationSettings, ledger: Ledger, bad: BadRecordWriter) -> _Counts:
    counts = _Counts()
    with ProgressBar("Reading (kB)", raw.total_bytes // 1000) as bar:
        stored_bytes = 0
        for batch in preparation.prepared(raw, settings, ledger, counts.raw):
            counts.batches.append(batch)
            counts.read += batch.counts.num_read
            counts.split += batch.counts.num_split
            counts.ordinals += batch.counts.num_ordinals
            counts.dropped += batch.counts.dropped
            counts.altered += batch.counts.altered
            bad.append(batch.counts.bad)
            stored_bytes += batch.stored_bytes
            bar.advance(stored_bytes // 1000 - bar.done, ledger.workers.note)
    return counts


def _tell_shape(shapes: Mapping[str, int]) -> None:
    """Say how plain text was understood, and which knob changes it."""
    if shapes:
        understood = " and ".join(f"{number:,} {unit}s" for unit, number in sorted(shapes.items()))
        _LOG.info("%s, one document each (`source.one_document_per` changes that)", understood)


def _check_any(buckets: list[SketchedBucket], counts: _Counts, raw: RawText, params: PreprocessParams) -> None:
    if not counts.read:
        raise DataError(
            f"{params.source.place}: no text in {raw.total_bytes:,} bytes", do="add text, or correct `source`"
        )
    if not buckets:
        reasons = clean_text.dropped_in_words(counts.dropped_by_reason())
        raise DataError(
            f"{params.source.place}: no text is left of {counts.read}: {reasons}",
            do=f"check `source`, or lower `min_characters` ({params.min_characters})",
        )


def _buckets(raw: RawText, seed: int, counts: _Counts, ledger: Ledger) -> list[SketchedBucket]:
    """Exchange the texts of the batches, and return the buckets that have any, without exact duplicates."""
    num_buckets = num_buckets_for(raw.raw_bytes)
    found: dict[int, list[tuple[FinishedTask, int]]] = {}
    for record in ledger.run_all(spread_items(counts.batches, num_buckets), "Spreading", read=()):
        for part, number in enumerate(record.facts):
            found.setdefault(number, []).append((record, part))
    buckets, numbers = [], sorted(found)
    items = [sort_item(number, found[number], seed) for number in numbers]
    records = ledger.run_all(items, "Sorting", (SORTED, *FILES_OF_COLUMNS))
    for number, record in zip(numbers, records, strict=True):
        num_texts, num_duplicates = record.facts
        counts.dropped[DropReason.EXACT_DUPLICATE] += num_duplicates
        buckets.append(SketchedBucket(record.key, record.folder, num_texts, number))
    return buckets


def _decide(sketches: Sketches, params: PreprocessParams, counts: _Counts, ledger: Ledger) -> _Placed:
    shares = SplitShares.of(params)
    empty = DiskArrays(sketches.folder).empty
    edges = similar_pairs(sketches, params.same_side_similarity, ledger)
    decision = decide(edges, sketches, shares, params.near_duplicate_similarity, empty)
    counts.dropped.update(decision.num_dropped())
    kept_N, sides_by_place_N = empty(sketches.num_texts, np.bool_), empty(sketches.num_texts, np.uint8)
    for chunk in chunks(sketches.num_texts):
        places = sketches.place_N[chunk]
        kept_N[places], sides_by_place_N[places] = decision.fate_N[chunk] == KEPT, decision.side_N[chunk]
    check_sides(decision, shares, params.source.place)
    return _Placed(kept_N, sides_by_place_N, sum(decision.kept_by_side()), _similarity_metrics(edges, decision))


def _similarity_metrics(edges: Edges, decision: SplitDecision) -> clean_text.SimilarityMetrics:
    num_of_size: Counter[int] = Counter()
    for sizes in decision.sizes():
        num_of_size.update(sizes.tolist())
    several = {size: number for size, number in num_of_size.items() if size > 1}
    return clean_text.SimilarityMetrics(
        compared_pairs=edges.num_candidates,
        similar_pairs=len(edges.similarity_E),
        groups=sum(several.values()),
        grouped_documents=sum(size * number for size, number in several.items()),
        largest_group=max(num_of_size),
        full_groups=decision.num_full(),
    )


def _write(
    buckets: Sequence[SketchedBucket], placed: _Placed, out: Path, ledger: Ledger, raw_bytes: int
) -> dict[str, clean_text.SplitMetrics]:
    """Write each split: a file, or a folder with a file for each of several ranges of keys."""
    num_ranges = num_ranges_for(raw_bytes)
    items = range_items(buckets, placed.kept_N, placed.sides_N, num_buckets_for(raw_bytes) // num_ranges)
    sizes = {split: TextSize() for split in clean_text.SPLITS}
    for number, record in zip(items, ledger.run_all([*items.values()], "Writing"), strict=True):
        sources = json.loads((record.folder / _SOURCES).read_bytes())
        for split, size in sizes.items():
            documents, characters, num_bytes = record.facts[split]
            size.add(documents, characters, num_bytes, sources[split])
            target = clean_text.file_of(out, split)
            if num_ranges > 1:
                target.mkdir(exist_ok=True)
                target /= f"{number:05d}.parquet"
            link_or_copy(clean_text.file_of(record.folder, split), target)
    return {split: size.metrics() for split, size in sizes.items()}
