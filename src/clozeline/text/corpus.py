"""Build the clean, split corpus from an opened source, in memory that hardly grows with the text."""

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clozeline.artifacts.preprocess.corpus_metrics import CorpusMetrics, SimilarityMetrics, dropped_in_words
from clozeline.artifacts.snapshot.forgotten import NOTHING, Forgotten
from clozeline.errors import DataError
from clozeline.machine.workers import Workers
from clozeline.params import PreprocessParams
from clozeline.progress import ProgressBar, track
from clozeline.storage.arrays import DiskArrays, chunks
from clozeline.storage.kept_results import KeptResults
from clozeline.text.bad_records import BAD_RECORDS, BadRecordWriter
from clozeline.text.batches import PreparedBatches, versions_used
from clozeline.text.buckets import num_buckets_for
from clozeline.text.clean_writer import CleanWriter
from clozeline.text.cleaning import ALTERATIONS
from clozeline.text.documents import DropReason, Source
from clozeline.text.exact_duplicates import BucketTask, sort_bucket
from clozeline.text.near_duplicates import Edges, similar_pairs
from clozeline.text.preparation import PreparationSettings
from clozeline.text.sketches import Sketches, SketchWriter
from clozeline.text.splits import KEPT, Decision, SplitShares, check_sides, decide
from clozeline.text.spool import BucketWriter, bucket_files, read_bucket
from clozeline.words.shingles import Banding


@dataclass
class _Counts:
    read: int = 0
    split: int = 0
    ordinals: int = 0
    dropped: Counter[DropReason] = field(default_factory=Counter)
    altered: Counter[str] = field(default_factory=Counter)

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
    source: Source,
    params: PreprocessParams,
    *,
    seed: int,
    out: Path,
    kept: KeptResults,
    workers: Workers,
    forgotten: Forgotten = NOTHING,
    named: Callable[[str], str] = str,
) -> CorpusMetrics:
    """Clean, deduplicate and split all texts of `source` into the empty folder `out`.

    The texts wait in a spool inside `out`, which is removed at the end. The result depends neither on `workers`, which
    are released before the writing, nor on the results of earlier runs in `kept`. Bad records that the source set aside
    are listed in `BAD_RECORDS`; `named` names their files.

    Raises:
        DataError: the source holds no text, or too little to split.
    """
    spool = out / "spool"
    spool.mkdir()
    batches = PreparedBatches(PreparationSettings.of(params, source, forgotten), kept)
    with BadRecordWriter(out / BAD_RECORDS, named) as bad:
        counts = _read(source, batches, spool, workers, bad)
    if not counts.read:
        raise DataError(
            f"{params.source.place}: the source holds no text",
            given=f"0 texts in {source.total_bytes:,} bytes",
            expected="at least one text",
            do="add text, or correct `source`",
        )
    if not bucket_files(spool):
        raise DataError(
            f"{params.source.place}: no text is left after cleaning",
            given=f"{counts.read} texts read: {dropped_in_words(counts.dropped_by_reason())}",
            expected=f"texts of at least {params.min_characters} characters",
            do="check `source`, or lower `min_characters`",
        )
    sketches = _collect_sketches(spool, params, seed, counts, workers)
    decision = _decide(sketches, params, counts, workers)
    workers.release()
    with CleanWriter(out) as clean:
        _write(spool, decision, clean)
    shutil.rmtree(spool)
    return CorpusMetrics(
        documents_read=counts.read,
        documents_split=counts.split,
        added_by_splitting=counts.ordinals - counts.read,
        documents_in=counts.ordinals,
        kept=decision.num_kept,
        dropped=counts.dropped_by_reason(),
        altered={kind: counts.altered[kind] for kind in ALTERATIONS},
        splits=clean.metrics(),
        similarity=decision.similarity,
        versions=versions_used(),
    )


def _read(source: Source, batches: PreparedBatches, spool: Path, workers: Workers, bad: BadRecordWriter) -> _Counts:
    counts = _Counts()
    num_buckets = num_buckets_for(source.total_bytes if source.raw_bytes is None else source.raw_bytes)
    bar = ProgressBar("Reading (kB)", source.total_bytes // 1000)
    with closing(source.units), BucketWriter(spool, num_buckets) as writer, bar:
        shown = 0
        for batch in batches.of(source.units, workers):
            writer.append(batch)
            counts.read += batch.num_read
            counts.split += batch.num_split
            counts.ordinals += batch.num_ordinals
            counts.dropped += batch.dropped
            counts.altered += batch.altered
            bad.append(batch.bad)
            bar.advance(source.meter.done_bytes // 1000 - shown)
            shown = source.meter.done_bytes // 1000
    batches.keep_only_these()
    return counts


def _collect_sketches(spool: Path, params: PreprocessParams, seed: int, counts: _Counts, workers: Workers) -> Sketches:
    tasks = [BucketTask(path, seed) for path in bucket_files(spool)]
    with SketchWriter(spool / "sketches", Banding.finding(params.same_side_similarity).num_bands) as writer:
        for bucket in track(workers.map(sort_bucket, tasks), "Sorting", len(tasks)):
            counts.dropped[DropReason.EXACT_DUPLICATE] += bucket.num_exact_duplicates
            writer.append(bucket)
        return writer.finish()


def _decide(sketches: Sketches, params: PreprocessParams, counts: _Counts, workers: Workers) -> _Placed:
    shares = SplitShares.of(params)
    empty = DiskArrays(sketches.folder).empty
    edges = similar_pairs(sketches, params.same_side_similarity, workers)
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


def _write(spool: Path, placed: _Placed, clean: CleanWriter) -> None:
    done = 0
    paths = bucket_files(spool)
    for path in track(paths, "Writing", len(paths)):
        texts = read_bucket(path)
        chosen = slice(done, done + len(texts))
        kept = placed.kept_N[chosen]
        clean.append(texts.filter(kept), placed.sides_N[chosen][kept])
        done += len(texts)
    assert done == len(placed.kept_N)
