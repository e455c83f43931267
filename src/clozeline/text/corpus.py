"""Build the clean, split corpus from raw text, in memory that hardly grows with the text."""

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clozeline.artifacts.preprocess.clean_text import SPLITS, file_of
from clozeline.artifacts.preprocess.corpus_metrics import (
    CorpusMetrics,
    SimilarityMetrics,
    SplitMetrics,
    dropped_in_words,
)
from clozeline.artifacts.snapshot.forgotten import NOTHING, Forgotten
from clozeline.cluster.ledger import Ledger
from clozeline.errors import DataError
from clozeline.machine.workers import Workers
from clozeline.params import PreprocessParams
from clozeline.progress import ProgressBar
from clozeline.storage.arrays import DiskArrays, chunks
from clozeline.storage.links import link_or_copy
from clozeline.text.bad_records import BAD_RECORDS, BadRecordWriter
from clozeline.text.batches import BatchRecord, ReadText, code_of_batches, prepared, versions_used
from clozeline.text.buckets import num_buckets_for, num_ranges_for
from clozeline.text.clean_ranges import Sizes, range_items, write_range
from clozeline.text.cleaning import ALTERATIONS
from clozeline.text.documents import DropReason
from clozeline.text.exact_duplicates import SORTED, BucketItem, sort_bucket
from clozeline.text.near_duplicates import Edges, similar_pairs
from clozeline.text.preparation import PreparationSettings
from clozeline.text.raw_files import RawText
from clozeline.text.sketched_buckets import FILES_OF_COLUMNS, SketchedBucket
from clozeline.text.sketches import Sketches
from clozeline.text.splits import KEPT, Decision, SplitShares, check_sides, decide
from clozeline.text.spreading import SPREAD, spread, spread_items
from clozeline.words.shingles import Banding

_LOG = logging.getLogger(__name__)


@dataclass
class _Counts:
    read: int = 0
    split: int = 0
    ordinals: int = 0
    batches: list[BatchRecord] = field(default_factory=list)
    dropped: Counter[DropReason] = field(default_factory=Counter)
    altered: Counter[str] = field(default_factory=Counter)
    raw: ReadText = field(default_factory=ReadText)

    def dropped_by_reason(self) -> dict[str, int]:
        return {reason.value: self.dropped[reason] for reason in DropReason}


@dataclass(frozen=True)
class _Placed:
    """Fate of each text, in the order of the buckets (N texts)."""

    kept_N: NDArray[np.bool_]
    sides_N: NDArray[np.uint8]
    num_kept: int
    similarity: SimilarityMetrics


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
) -> CorpusMetrics:
    """Clean, deduplicate and split all texts of `raw` into the empty folder `out`.

    The files of the tasks wait in `work` until the end, arrays in a spool inside `out`, which is removed then. The
    result depends neither on `workers`, which are released before the writing, nor on what earlier runs left in
    `work`. Bad records that the source set aside are listed in `BAD_RECORDS`; `named` names their files.

    Raises:
        DataError: the source holds no text, or too little to split.
    """
    spool = out / "spool"
    spool.mkdir()
    settings = PreparationSettings.of(params, forgotten, decode_entities=raw.decode_entities)
    ledger = Ledger(work, code_of_batches(settings), workers)
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
    return CorpusMetrics(
        documents_read=counts.read,
        documents_split=counts.split,
        added_by_splitting=counts.ordinals - counts.read,
        documents_in=counts.ordinals,
        kept=decision.num_kept,
        dropped=counts.dropped_by_reason(),
        altered={kind: counts.altered[kind] for kind in ALTERATIONS},
        splits=splits,
        similarity=decision.similarity,
        versions=versions_used(),
    )


def _read(raw: RawText, settings: PreparationSettings, ledger: Ledger, bad: BadRecordWriter) -> _Counts:
    counts = _Counts()
    with ProgressBar("Reading (kB)", raw.total_bytes // 1000) as bar:
        stored_bytes = 0
        for batch in prepared(raw, settings, ledger, counts.raw):
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
        raise DataError(
            f"{params.source.place}: no text is left of {counts.read}: {dropped_in_words(counts.dropped_by_reason())}",
            do=f"check `source`, or lower `min_characters` ({params.min_characters})",
        )


def _buckets(raw: RawText, seed: int, counts: _Counts, ledger: Ledger) -> list[SketchedBucket]:
    """Exchange the texts of the batches, and return the buckets that have any, without exact duplicates."""
    num_buckets = num_buckets_for(raw.raw_bytes)
    found: dict[int, BucketItem] = {}
    for record in ledger.run_all(spread, spread_items(counts.batches, num_buckets), "Spreading", read=()):
        for part, number in enumerate(record.facts):
            bucket = found.setdefault(number, BucketItem(number, seed))
            bucket.spreads.append((record.key, record.folder / SPREAD, part))
    buckets = []
    items, read = [found[number] for number in sorted(found)], (SORTED, *FILES_OF_COLUMNS)
    for item, record in zip(items, ledger.run_all(sort_bucket, items, "Sorting", read), strict=True):
        num_texts, num_duplicates = record.facts
        counts.dropped[DropReason.EXACT_DUPLICATE] += num_duplicates
        buckets.append(SketchedBucket(record.key, record.folder, num_texts, item.number))
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


def _similarity_metrics(edges: Edges, decision: Decision) -> SimilarityMetrics:
    num_of_size: Counter[int] = Counter()
    for sizes in decision.sizes():
        num_of_size.update(sizes.tolist())
    several = {size: number for size, number in num_of_size.items() if size > 1}
    return SimilarityMetrics(
        compared_pairs=edges.num_candidates,
        similar_pairs=len(edges.similarity_E),
        groups=sum(several.values()),
        grouped_documents=sum(size * number for size, number in several.items()),
        largest_group=max(num_of_size),
        full_groups=decision.num_full(),
    )


def _write(
    buckets: Sequence[SketchedBucket], placed: _Placed, out: Path, ledger: Ledger, raw_bytes: int
) -> dict[str, SplitMetrics]:
    """Write each split: a file, or a folder with a file for each of several ranges of keys."""
    num_ranges = num_ranges_for(raw_bytes)
    items = range_items(buckets, placed.kept_N, placed.sides_N, num_buckets_for(raw_bytes) // num_ranges)
    sizes = {split: Sizes() for split in SPLITS}
    for item, record in zip(items, ledger.run_all(write_range, items, "Writing"), strict=True):
        for split, size in sizes.items():
            size.add(record, split)
            target = file_of(out, split)
            if num_ranges > 1:
                target.mkdir(exist_ok=True)
                target /= f"{item.number:05d}.parquet"
            link_or_copy(file_of(record.folder, split), target)
    return {split: size.metrics() for split, size in sizes.items()}
