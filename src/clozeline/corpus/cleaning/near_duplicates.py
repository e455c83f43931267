"""Near-duplicates among sketched texts: candidates by shared bands, then the exact Jaccard similarity of each.

Candidates are found band by band, in files; memory holds a few numbers for each text. Texts are numbered in the order
of the source. Pairs are kept by the part of the later text, so that the two numbers of a pair fit in 64 bits, and the
work is divided.

Suffixes of names give the shape: N texts, T texts of a part of a band, P pairs, E edges, S shingles.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.cluster.ledger import Done, FinishedTask, Item, Ledger
from clozeline.corpus.cleaning.buckets import COLUMNS, SketchedBucket
from clozeline.records.words.numbers import run_positions
from clozeline.system.arrays import DiskArrays, chunks, gathered, mapped
from clozeline.system.progress import ProgressBar

# Preceding texts of a band that a text is compared with, besides the first one: boilerplate stays cheap.
_NUM_NEIGHBOURS = 4
# Approximate number of texts of a band processed at a time.
_PART_TEXTS = 1 << 15
# A part of the pairs is of 2 to the power of this many later texts. 44 bits are left for the earlier text.
_LATER_BITS = 20
_EARLIER_BITS = 64 - _LATER_BITS
_PAIRS_FILE = "pairs.bin"

_TASK_SHINGLES = 1_500_000
_CHUNK_SHINGLES = 150_000
_TASK_PAIRS = 20_000
_EDGES_FILE = "edges.bin"
_EDGE = np.dtype([("earlier", np.int64), ("later", np.int64), ("similarity", np.float64)])


@dataclass(frozen=True)
class Sketches:
    """Sketches of N texts, numbered in the order of the source. Band hashes and shingles are in the buckets."""

    place_N: NDArray[np.int64]  # index of each text in bucket order
    parent_N: NDArray[np.int64]  # equal for the parts that were cut from one document
    draw_N: NDArray[np.float64]
    shingle_start_N: NDArray[np.int64]  # index of the first shingle in the file of the text's bucket
    num_shingles_N: NDArray[np.int64]
    folder: Path  # folder for files derived from these, which every worker sees
    buckets: tuple[SketchedBucket, ...]
    num_bands: int

    @property
    def num_texts(self) -> int:
        return len(self.place_N)

    @classmethod
    def of(cls, buckets: Sequence[SketchedBucket], num_bands: int, folder: Path) -> "Sketches":
        """Number the texts of the buckets. `folder` is made."""
        folder.mkdir()
        disk = DiskArrays(folder)
        ordinals = disk.joined((bucket.column("ordinals") for bucket in buckets), np.int64)
        place_N = _places(ordinals, disk)
        return cls(
            place_N=place_N,
            parent_N=_by_source(buckets, "parents", place_N, disk),
            draw_N=_by_source(buckets, "draws", place_N, disk),
            shingle_start_N=gathered(disk.joined(_shingle_starts(buckets), np.int64), place_N, disk.empty),
            num_shingles_N=_by_source(buckets, "num_shingles", place_N, disk),
            folder=folder,
            buckets=tuple(buckets),
            num_bands=num_bands,
        )


def _by_source(
    buckets: Sequence[SketchedBucket], name: str, place_N: NDArray[np.int64], disk: DiskArrays
) -> NDArray[Any]:
    by_bucket = disk.joined((bucket.column(name) for bucket in buckets), COLUMNS[name])
    return gathered(by_bucket, place_N, disk.empty)


def _shingle_starts(buckets: Sequence[SketchedBucket]) -> Iterator[NDArray[np.int64]]:
    for bucket in buckets:
        counts_N = bucket.column("num_shingles")
        yield np.cumsum(counts_N) - counts_N


def _places(ordinals: NDArray[Any], disk: DiskArrays) -> NDArray[Any]:
    """Return `np.argsort(ordinals)` without holding it in memory. Ordinals are unique, with gaps."""
    num_ordinals = max((int(ordinals[chunk].max()) + 1 for chunk in chunks(len(ordinals))), default=0)
    place_of_ordinal, place_N = disk.empty(num_ordinals, np.int64), disk.empty(len(ordinals), np.int64)
    for chunk in chunks(len(ordinals)):
        place_of_ordinal[ordinals[chunk]] = np.arange(chunk.start, chunk.stop) + 1  # 0 marks an unused ordinal
    done = 0
    for chunk in chunks(num_ordinals):
        there = place_of_ordinal[chunk]
        there = there[there > 0] - 1
        place_N[done : done + len(there)] = there
        done += len(there)
    return place_N


@dataclass(frozen=True)
class Candidates:
    """Pairs of one part: sorted and unique."""

    key: str  # key of the task that merged them
    packed_P: NDArray[np.uint64]
    part: int

    def texts(self, some: slice) -> NDArray[np.int64]:
        """Return an array of two rows: earlier texts, later texts."""
        packed_P = self.packed_P[some]
        later_P = (packed_P >> np.uint64(_EARLIER_BITS)).astype(np.int64) + (self.part << _LATER_BITS)
        return np.stack([(packed_P & np.uint64((1 << _EARLIER_BITS) - 1)).astype(np.int64), later_P])


def candidates(sketches: Sketches, ledger: Ledger) -> list[Candidates]:
    """Return the pairs that share a band, part by part."""
    assert sketches.num_texts < 1 << _EARLIER_BITS
    places = sketches.folder / "places.bin"
    sketches.place_N.tofile(places)
    buckets, keys = sketches.buckets, [bucket.key for bucket in sketches.buckets]
    reads = [places, *(bucket.bands for bucket in buckets)]
    bands = [
        Item(f"band {band}", [band, keys], reads, partial(_write_pairs, band, buckets, places))
        for band in range(sketches.num_bands)
    ]
    by_part: dict[int, list[FinishedTask]] = {}
    for record in ledger.run_all(bands, "Pairing", read=()):
        for part in map(int, record.facts):
            by_part.setdefault(part, []).append(record)
    items = []
    for part, done in sorted(by_part.items()):
        files = [_pairs_file(record.folder, part) for record in done]
        inputs = [part, [record.key for record in done]]
        items.append(Item(f"part {part} of the pairs", inputs, files, partial(_merge, files)))
    return [
        Candidates(record.key, mapped(record.folder / _PAIRS_FILE, np.uint64), part)
        for part, record in zip(sorted(by_part), ledger.run(items), strict=True)
    ]


def _pairs_file(folder: Path, part: int) -> Path:
    return folder / f"part-{part:06d}.bin"


def _merge(files: Sequence[Path], folder: Path) -> Done:
    """Write the pairs of all bands, whose files are given, sorted and each once."""
    pairs_P: NDArray[np.uint64] = DiskArrays(folder).joined((mapped(file, np.uint64) for file in files), np.uint64)
    pairs_P.sort()
    with (folder / _PAIRS_FILE).open("wb") as file:
        for unique in _unique(pairs_P):
            unique.tofile(file)
    return Done()


def _unique(sorted_P: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    """Yield one of each run of equal numbers, chunk by chunk."""
    last: Any = None
    for chunk in chunks(len(sorted_P)):
        values = sorted_P[chunk]
        yield values[np.append(last is None or values[0] != last, values[1:] != values[:-1])]
        last = values[-1]


def _write_pairs(band: int, buckets: Sequence[SketchedBucket], places: Path, folder: Path) -> Done:
    """Write each pair of one band once; the facts are the numbers of pairs by part."""
    hashes = DiskArrays(folder).joined((bucket.band(band) for bucket in buckets), np.uint64)
    counts: dict[int, int] = defaultdict(int)
    for hash_T, text_T in _parts(hashes, mapped(places, np.int64), folder):
        for part, packed_P in packed_by_part(*_pairs_of(hash_T, text_T)).items():
            counts[part] += len(packed_P)
            with _pairs_file(folder, part).open("ab") as file:
                packed_P.tofile(file)
    return Done(counts)


def _parts(
    hashes: NDArray[np.uint64], place_N: NDArray[np.int64], folder: Path
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
    """Yield the texts in parts, by the first bits of their hashes, so that equal hashes are in the same part.

    The numbers of the texts of a part are in ascending order.
    """
    bits = max((len(place_N) // _PART_TEXTS).bit_length(), 0)
    if not bits:
        yield hashes[place_N], np.arange(len(place_N))
        return
    shift = np.uint64(64 - bits)
    sizes = np.zeros(1 << bits, dtype=np.int64)
    for chunk in chunks(len(hashes), _PART_TEXTS):
        sizes += np.bincount((hashes[chunk] >> shift).astype(np.int64), minlength=len(sizes))
    ends = np.cumsum(sizes)
    empty = DiskArrays(folder).empty
    hash_N, text_N = empty(len(hashes), np.uint64), empty(len(hashes), np.int64)
    free = ends - sizes
    for chunk in chunks(len(place_N), _PART_TEXTS):
        hash_T = hashes[place_N[chunk]]
        part_T = (hash_T >> shift).astype(np.int64)
        # NumPy sorts small integer types by radix if the sort is stable.
        order_T = np.argsort(part_T.astype(np.min_scalar_type(len(sizes) - 1)), kind="stable")
        counts = np.bincount(part_T, minlength=len(sizes))
        to_T = np.repeat(free - (np.cumsum(counts) - counts), counts) + np.arange(len(order_T))
        hash_N[to_T], text_N[to_T] = hash_T[order_T], order_T + chunk.start
        free += counts
    for start, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True):
        if end > start:
            yield hash_N[start:end], text_N[start:end]


def _pairs_of(hash_T: NDArray[np.uint64], text_T: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the earlier and the later texts of the pairs; a pair may occur several times."""
    shared_T = _shared(hash_T)
    if not len(shared_T):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    hash_T, text_T = hash_T[shared_T], text_T[shared_T]
    order_T = np.argsort(hash_T, kind="stable")
    sorted_T, text_T = hash_T[order_T], text_T[order_T]
    starts = np.flatnonzero(np.append(True, sorted_T[1:] != sorted_T[:-1]))
    first_T = np.repeat(text_T[starts], np.diff(np.append(starts, len(sorted_T))))
    alone_T = first_T == text_T
    earlier, later = [first_T[~alone_T]], [text_T[~alone_T]]
    for distance in range(1, _NUM_NEIGHBOURS + 1):
        same_T = sorted_T[:-distance] == sorted_T[distance:]
        earlier.append(text_T[:-distance][same_T])
        later.append(text_T[distance:][same_T])
    return np.concatenate(earlier), np.concatenate(later)


def packed_by_part(earlier_P: NDArray[np.int64], later_P: NDArray[np.int64]) -> Mapping[int, NDArray[np.uint64]]:
    """Return part of the later texts → its pairs as sorted unique numbers `later << 44 | earlier`."""
    part_P = later_P >> _LATER_BITS
    packed: dict[int, NDArray[np.uint64]] = {}
    for part in np.unique(part_P).tolist():
        chosen = part_P == part
        later = (later_P[chosen] - (part << _LATER_BITS)).astype(np.uint64)
        packed[part] = np.unique((later << np.uint64(_EARLIER_BITS)) | earlier_P[chosen].astype(np.uint64))
    return packed


def _shared(hash_T: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the indices of the hashes that occur more than once. They are few; sorting these alone halves the time."""
    order_T = np.argsort(hash_T)
    sorted_T = hash_T[order_T]
    same = sorted_T[1:] == sorted_T[:-1]
    is_shared_T = np.append(False, same) | np.append(same, False)
    return np.sort(order_T[is_shared_T])


@dataclass(frozen=True)
class Edges:
    """Pairs of similar texts, `earlier` < `later`, sorted by `later`, then `earlier`."""

    earlier_E: NDArray[np.int64]
    later_E: NDArray[np.int64]
    similarity_E: NDArray[np.float64]
    num_candidates: int


@dataclass(frozen=True)
class _Pairs:
    """Pairs to compare, and the location of their texts' shingles (two rows: earlier, later)."""

    texts_2P: NDArray[np.int64]
    shingles: tuple[Path, ...]
    file_2P: NDArray[np.int64]  # number of each text's file in `shingles`
    starts_2P: NDArray[np.int64]
    counts_2P: NDArray[np.int64]


def similar_pairs(sketches: Sketches, minimum: float, ledger: Ledger) -> Edges:
    """Find the pairs whose sets of word shingles have a Jaccard similarity of `minimum` or more.

    Every candidate is checked. A pair that the bands miss stays unseen: at most 3 % at `minimum`, fewer above.
    """
    parts = candidates(sketches, ledger)
    bar = ProgressBar("Comparing", sum(len(part.packed_P) for part in parts))
    path = sketches.folder / _EDGES_FILE
    with path.open("wb") as file, bar:
        for part in parts:
            before = bar.done
            for record in ledger.run(_to_compare(sketches, part, minimum)):
                file.write((record.folder / _EDGES_FILE).read_bytes())
                bar.advance(before + record.facts - bar.done, ledger.workers.note)
            bar.advance(before + len(part.packed_P) - bar.done)
    found = mapped(path, _EDGE)
    return Edges(found["earlier"], found["later"], found["similarity"], sum(len(part.packed_P) for part in parts))


def _to_compare(sketches: Sketches, part: Candidates, minimum: float) -> Iterator[Item]:
    """Yield comparisons of about `_TASK_SHINGLES` shingles, without the pairs that the sizes alone rule out.

    A set of less than `minimum` times the size of the other has a similarity below `minimum`.
    """
    first_places = np.cumsum([0, *(bucket.num_texts for bucket in sketches.buckets)])
    number = 0
    for some in chunks(len(part.packed_P), _TASK_PAIRS):
        texts_2P = part.texts(some)
        counts_2P = sketches.num_shingles_N[texts_2P]
        is_possible_P = counts_2P.min(axis=0) / counts_2P.max(axis=0) >= minimum
        texts_2P, counts_2P = texts_2P[:, is_possible_P], counts_2P[:, is_possible_P]
        bucket_2P = np.searchsorted(first_places, sketches.place_N[texts_2P], side="right") - 1
        for cut in _cuts(counts_2P, _TASK_SHINGLES):
            used, file = np.unique(bucket_2P[:, cut], return_inverse=True)
            pairs = _Pairs(
                texts_2P=texts_2P[:, cut],
                shingles=tuple(sketches.buckets[bucket].shingles for bucket in used.tolist()),
                file_2P=file.reshape(2, -1),
                starts_2P=sketches.shingle_start_N[texts_2P[:, cut]],
                counts_2P=counts_2P[:, cut],
            )
            run = partial(_compare, pairs, minimum, some.stop)
            yield Item(f"comparison {number}", [part.key, number, minimum], pairs.shingles, run)
            number += 1


def _cuts(counts_2P: NDArray[np.int64], num_shingles: int) -> Iterator[slice]:
    """Cut pairs into runs of about this many shingles."""
    number_P = np.cumsum(counts_2P.sum(axis=0)) // num_shingles
    cuts = (np.flatnonzero(np.diff(number_P)) + 1).tolist()
    return (slice(first, end) for first, end in zip([0, *cuts], [*cuts, len(number_P)], strict=True) if end > first)


def _compare(pairs: _Pairs, minimum: float, end: int, folder: Path) -> Done:
    """Write the similar pairs and their Jaccard similarity; the facts are `end`, how far the part is then compared."""
    hashes_S = _hashes(pairs)
    ends_2P = np.cumsum(pairs.counts_2P.ravel()).reshape(2, -1)
    found = [_similar(pairs, cut, minimum, hashes_S, ends_2P) for cut in _cuts(pairs.counts_2P, _CHUNK_SHINGLES)]
    np.concatenate(found).tofile(folder / _EDGES_FILE)
    return Done(end)


def _hashes(pairs: _Pairs) -> NDArray[np.uint32]:
    """Return the shingles of the earlier texts, then those of the later ones."""
    files, starts, counts = (of_2P.ravel() for of_2P in (pairs.file_2P, pairs.starts_2P, pairs.counts_2P))
    to = np.cumsum(counts) - counts
    hashes_S = np.empty(counts.sum(), np.uint32)
    for number, path in enumerate(pairs.shingles):
        of_file = files == number
        from_S = run_positions(starts[of_file], counts[of_file])
        hashes_S[run_positions(to[of_file], counts[of_file])] = mapped(path, np.uint32)[from_S]
    return hashes_S


def _similar(
    pairs: _Pairs, cut: slice, minimum: float, hashes_S: NDArray[np.uint32], ends_2P: NDArray[np.int64]
) -> NDArray[np.void]:
    """Return the similar pairs among some, as edges."""
    counts_2C, ends_2C = pairs.counts_2P[:, cut], ends_2P[:, cut]
    num_pairs = counts_2C.shape[1]
    bounds = zip(ends_2C[:, 0] - counts_2C[:, 0], ends_2C[:, -1], strict=True)
    hashes_C = np.concatenate([hashes_S[start:end] for start, end in bounds])
    pair_C = np.repeat(np.tile(np.arange(num_pairs, dtype=np.uint64), 2), counts_2C.ravel())
    # The sets of the earlier and of the later texts are each sorted, so a stable sort merges them, 20 times as fast.
    keys_C = np.sort((pair_C << np.uint64(32)) | hashes_C, kind="stable")
    shared = keys_C[1:][keys_C[1:] == keys_C[:-1]] >> np.uint64(32)
    common_P = np.bincount(shared.astype(np.int64), minlength=num_pairs)
    jaccard_P = common_P / (counts_2C.sum(axis=0) - common_P)
    similar_P = jaccard_P >= minimum
    edges = np.empty(similar_P.sum(), _EDGE)
    edges["earlier"], edges["later"] = pairs.texts_2P[:, cut][:, similar_P]
    edges["similarity"] = jaccard_P[similar_P]
    return edges
