"""The clean, split corpus is built from raw text, in memory that hardly grows with the text.

The kept texts of consecutive buckets are a range of keys, which goes into one Parquet file of each split. Equal texts
give equal bytes.
"""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import groupby, pairwise
from pathlib import Path

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
from clozeline.corpus.cleaning.documents import BAD_RECORDS, DropReason, RawText, write_bad_records
from clozeline.corpus.cleaning.near_duplicates import Edges, Sketches, similar_pairs
from clozeline.corpus.cleaning.portions import ReadText
from clozeline.corpus.cleaning.splits import KEPT, SplitDecision, SplitShares, check_sides, decide
from clozeline.params.text import PreprocessParams
from clozeline.records import clean_text, snapshot
from clozeline.records.words.shingles import Banding
from clozeline.system import arrays, errors, files, progress
from clozeline.system.workers import Workers

_LOG = logging.getLogger(__name__)

_ROW_GROUP_BYTES = 2_000_000
# Row groups end between ranges of keys or between buckets. There are 2 to the power of this many ranges.
_KEYS_A_STEP_BITS = 7

# Labels of the texts of each split.
_SOURCES = "sources.json"


@dataclass
class _Part:
    """The file of a split, with the size and the labels of its texts."""

    writer: pq.ParquetWriter
    size: Counter[str] = field(default_factory=lambda: Counter(documents=0, characters=0, bytes=0))
    labels: set[str] = field(default_factory=set)
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0

    def append(self, texts: pa.Table) -> None:
        if not len(texts):
            return
        num_characters = pc.sum(pc.utf8_length(texts[clean_text.TEXT])).as_py()
        num_bytes = pc.sum(pc.binary_length(texts[clean_text.TEXT])).as_py()
        self.size.update(documents=len(texts), characters=num_characters, bytes=num_bytes)
        self.labels.update(texts[clean_text.SOURCE].unique().to_pylist())
        self.waiting.append(texts)
        self.waiting_bytes += num_bytes
        if self.waiting_bytes >= _ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.waiting:
            texts = pa.concat_tables(self.waiting).combine_chunks()
            self.writer.write_table(texts, row_group_size=len(texts))
            self.waiting, self.waiting_bytes = [], 0


def _append(texts: pa.Table, sides: NDArray[np.uint8], parts: Sequence[_Part]) -> None:
    """Append each text (columns of `PREPARED`, keys rising) to the split whose number `sides` holds."""
    keys = texts["key"].to_pylist()
    step_N = np.array([key[0] >> 8 - _KEYS_A_STEP_BITS for key in keys], dtype=np.int64)
    bounds = [0, *(np.flatnonzero(np.diff(step_N)) + 1).tolist(), len(keys)]
    doc_ids = pa.array([key.hex() for key in keys], pa.string())
    clean = pa.table([doc_ids, *(texts[name] for name in clean_text.SCHEMA.names[1:])], clean_text.SCHEMA)
    for start, end in pairwise(bounds):
        for side, part in enumerate(parts):
            part.append(clean.slice(start, end - start).filter(pa.array(sides[start:end] == side)))


def range_items(
    buckets: Sequence[SketchedBucket], kept_N: NDArray[np.bool_], sides_N: NDArray[np.uint8], raw_bytes: int
) -> dict[int, Item]:
    """Return number → task of the ranges that have texts, in order.

    Args:
        buckets: the buckets that have any text, in order.
        kept_N: whether each of their texts is kept.
        sides_N: number of the split of each text.
        raw_bytes: size of the source, which decides how many buckets a range has, with those that are empty.
    """
    items, start = {}, 0
    buckets_of_range = num_buckets_for(raw_bytes) // num_ranges_for(raw_bytes)
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
    """Write one file of each split, its rows in the order of their keys, which is a shuffle.

    The facts are the texts, characters and bytes of each.
    """
    done = 0
    with ExitStack() as opened:
        parts = {
            split: _Part(
                opened.enter_context(
                    pq.ParquetWriter(
                        clean_text.file_of(folder, split),
                        clean_text.SCHEMA,
                        compression="zstd",
                        use_dictionary=[clean_text.SOURCE],
                    )
                )
            )
            for split in clean_text.SPLITS
        }
        for bucket in buckets:
            texts = preparation.read_texts(bucket)
            chosen = slice(done, done + len(texts))
            _append(texts.filter(kept_N[chosen]), sides_N[chosen][kept_N[chosen]], [*parts.values()])
            done += len(texts)
        for part in parts.values():
            part.flush()
    labels = {split: sorted(part.labels) for split, part in parts.items()}
    (folder / _SOURCES).write_text(json.dumps(labels), encoding="utf-8")
    return Done({split: part.size for split, part in parts.items()})


def build_corpus(
    raw: RawText,
    params: PreprocessParams,
    *,
    seed: int,
    out: Path,
    work: Path,
    workers: Workers,
    forgotten: snapshot.Forgotten = snapshot.NOTHING,
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
    batches, read = _read(raw, settings, ledger)
    write_bad_records(out / BAD_RECORDS, (bad for batch in batches for bad in batch.counts.bad), named)
    counts = [batch.counts for batch in batches]
    num_read, dropped = sum(one.num_read for one in counts), sum((one.dropped for one in counts), Counter[str]())
    buckets = _buckets(raw, seed, batches, dropped, ledger)
    _check_any(buckets, num_read, dropped, raw, params)
    sketches = Sketches.of(buckets, Banding.finding(params.same_side_similarity).num_bands, spool / "sketches")
    kept_N, sides_N, similarity = _decide(sketches, params, dropped, ledger)
    items = range_items(buckets, kept_N, sides_N, raw.raw_bytes)
    splits = _write(items, out, ledger, is_in_files=num_ranges_for(raw.raw_bytes) > 1)
    workers.release()
    shutil.rmtree(spool)
    _LOG.info("%d of %d batches of text kept from earlier runs", sum(it.is_found for it in batches), len(batches))
    _tell_shape(read.shapes)
    ledger.keep_only(read.portions | {batch.key for batch in batches})
    num_texts = sum(one.num_ordinals for one in counts)
    altered = sum((one.altered for one in counts), Counter[str]())
    return clean_text.CorpusMetrics(
        documents_read=num_read,
        documents_split=sum(one.num_split for one in counts),
        added_by_splitting=num_texts - num_read,
        documents_in=num_texts,
        kept=sum(split.documents for split in splits.values()),
        dropped=_by_reason(dropped),
        altered={kind: altered[kind] for kind in preparation.ALTERATIONS},
        splits=splits,
        similarity=similarity,
        versions=preparation.versions_used(),
    )


def _read(
    raw: RawText, settings: preparation.PreparationSettings, ledger: Ledger
) -> tuple[list[preparation.BatchRecord], ReadText]:
    batches, read = [], ReadText()
    with progress.ProgressBar("Reading (kB)", raw.total_bytes // 1000) as bar:
        stored_bytes = 0
        for batch in preparation.prepared(raw, settings, ledger, read):
            batches.append(batch)
            stored_bytes += batch.stored_bytes
            bar.advance(stored_bytes // 1000 - bar.done, ledger.workers.note)
    return batches, read


def _by_reason(dropped: Counter[str]) -> dict[str, int]:
    return {reason.value: dropped[reason] for reason in DropReason}


def _tell_shape(shapes: Mapping[str, int]) -> None:
    """Say how plain text was understood, and which knob changes it."""
    if shapes:
        understood = " and ".join(f"{number:,} {unit}s" for unit, number in sorted(shapes.items()))
        _LOG.info("%s, one document each (`source.one_document_per` changes that)", understood)


def _check_any(
    buckets: Sequence[SketchedBucket], num_read: int, dropped: Counter[str], raw: RawText, params: PreprocessParams
) -> None:
    if not num_read:
        raise errors.DataError(
            f"{params.source.place}: no text in {raw.total_bytes:,} bytes", do="add text, or correct `source`"
        )
    if not buckets:
        reasons = clean_text.dropped_in_words(_by_reason(dropped))
        raise errors.DataError(
            f"{params.source.place}: no text is left of {num_read}: {reasons}",
            do=f"check `source`, or lower `min_characters` ({params.min_characters})",
        )


def _buckets(
    raw: RawText, seed: int, batches: Sequence[preparation.BatchRecord], dropped: Counter[str], ledger: Ledger
) -> list[SketchedBucket]:
    """Exchange the texts of the batches, and return the buckets that have any, without exact duplicates, which are
    counted in `dropped`.
    """
    num_buckets = num_buckets_for(raw.raw_bytes)
    found: dict[int, list[tuple[FinishedTask, int]]] = {}
    for record in ledger.run_all(spread_items(batches, num_buckets), "Spreading", read=()):
        for part, number in enumerate(record.facts):
            found.setdefault(number, []).append((record, part))
    buckets, numbers = [], sorted(found)
    items = [sort_item(number, found[number], seed) for number in numbers]
    records = ledger.run_all(items, "Sorting", (SORTED, *FILES_OF_COLUMNS))
    for number, record in zip(numbers, records, strict=True):
        num_texts, num_duplicates = record.facts
        dropped[DropReason.EXACT_DUPLICATE] += num_duplicates
        buckets.append(SketchedBucket(record.key, record.folder, num_texts, number))
    return buckets


def _decide(
    sketches: Sketches, params: PreprocessParams, dropped: Counter[str], ledger: Ledger
) -> tuple[NDArray[np.bool_], NDArray[np.uint8], clean_text.SimilarityMetrics]:
    """Return whether each text is kept and the number of its split, in the order of the buckets."""
    shares = SplitShares.of(params)
    empty = arrays.DiskArrays(sketches.folder).empty
    edges = similar_pairs(sketches, params.same_side_similarity, ledger)
    decision = decide(edges, sketches, shares, params.near_duplicate_similarity, empty)
    dropped.update(decision.num_dropped())
    kept_N, sides_by_place_N = empty(sketches.num_texts, np.bool_), empty(sketches.num_texts, np.uint8)
    for chunk in arrays.chunks(sketches.num_texts):
        places = sketches.place_N[chunk]
        kept_N[places], sides_by_place_N[places] = decision.fate_N[chunk] == KEPT, decision.side_N[chunk]
    check_sides(decision, shares, params.source.place)
    return kept_N, sides_by_place_N, _similarity_metrics(edges, decision)


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
    items: Mapping[int, Item], out: Path, ledger: Ledger, *, is_in_files: bool
) -> dict[str, clean_text.SplitMetrics]:
    """Write each split: a file, or a folder with a file for each of several ranges of keys."""
    sizes = {split: Counter[str]() for split in clean_text.SPLITS}
    labels: dict[str, set[str]] = {split: set() for split in clean_text.SPLITS}
    for number, record in zip(items, ledger.run_all([*items.values()], "Writing"), strict=True):
        found = json.loads((record.folder / _SOURCES).read_bytes())
        for split, size in sizes.items():
            size.update(record.facts[split])
            labels[split].update(found[split])
            target = clean_text.file_of(out, split)
            if is_in_files:
                target.mkdir(exist_ok=True)
                target /= f"{number:05d}.parquet"
            files.link_or_copy(clean_text.file_of(record.folder, split), target)
    return {split: clean_text.SplitMetrics(**size, sources=len(labels[split])) for split, size in sizes.items()}
