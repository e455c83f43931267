"""Candidate pairs of similar texts: pairs that share a band, found band by band, in files.

Texts are numbered in the order of the source. Pairs are kept by the part of the later text, so that the two numbers of
a pair fit in 64 bits, and the work is divided. Suffixes of names give the shape: N texts, T texts of a part of a band,
P pairs.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clozeline.cluster.ledger import Done, Ledger, Record
from clozeline.storage.arrays import DiskArrays, chunks, mapped
from clozeline.text.sketched_buckets import SketchedBucket
from clozeline.text.sketches import Sketches

_NUM_NEIGHBOURS = 4
"""Preceding texts of a band that a text is compared with, besides the first one: boilerplate stays cheap."""
_PART_TEXTS = 1 << 15
"""Approximate number of texts of a band processed at a time."""
_LATER_BITS: Final = 20
"""A part of the pairs is of 2 to the power of this many later texts. 44 bits are left for the earlier text."""
_EARLIER_BITS: Final = 64 - _LATER_BITS
_PAIRS: Final = "pairs.bin"


@dataclass(frozen=True)
class Candidates:
    """Pairs of one part: sorted and unique."""

    key: str
    """Key of the task that merged them."""
    packed_P: NDArray[np.uint64]
    part: int

    def texts(self, some: slice) -> NDArray[np.int64]:
        """Return an array of two rows: earlier texts, later texts."""
        packed_P = self.packed_P[some]
        later_P = (packed_P >> np.uint64(_EARLIER_BITS)).astype(np.int64) + (self.part << _LATER_BITS)
        return np.stack([(packed_P & np.uint64((1 << _EARLIER_BITS) - 1)).astype(np.int64), later_P])


@dataclass(frozen=True)
class _Band:
    number: int
    buckets: tuple[SketchedBucket, ...]
    places: Path

    @property
    def name(self) -> str:
        return f"band {self.number}"

    @property
    def inputs(self) -> list[object]:
        return [self.number, [bucket.key for bucket in self.buckets]]

    @property
    def reads(self) -> list[Path]:
        return [self.places, *(bucket.bands for bucket in self.buckets)]


@dataclass(frozen=True)
class _Part:
    number: int
    bands: list[Record] = field(default_factory=list)
    """Bands that have pairs of this part."""

    @property
    def name(self) -> str:
        return f"part {self.number} of the pairs"

    @property
    def inputs(self) -> list[object]:
        return [self.number, [band.key for band in self.bands]]

    @property
    def reads(self) -> list[Path]:
        return [_pairs_file(band.folder, self.number) for band in self.bands]


def candidates(sketches: Sketches, ledger: Ledger) -> list[Candidates]:
    """Return the pairs that share a band, part by part."""
    assert sketches.num_texts < 1 << _EARLIER_BITS
    places = sketches.folder / "places.bin"
    sketches.place_N.tofile(places)
    bands = [_Band(band, sketches.buckets, places) for band in range(sketches.num_bands)]
    parts: dict[int, _Part] = {}
    for record in ledger.run_all(_write_pairs, bands, "Pairing", read=()):
        for part in map(int, record.facts):
            parts.setdefault(part, _Part(part)).bands.append(record)
    ordered = [parts[number] for number in sorted(parts)]
    merged = ledger.run(_merge, ordered)
    return [
        Candidates(record.key, mapped(record.folder / _PAIRS, np.uint64), part.number)
        for part, record in zip(ordered, merged, strict=True)
    ]


def _pairs_file(folder: Path, part: int) -> Path:
    return folder / f"part-{part:06d}.bin"


def _merge(part: _Part, folder: Path) -> Done:
    """Write the pairs of all bands sorted, each once."""
    by_band = (mapped(_pairs_file(band.folder, part.number), np.uint64) for band in part.bands)
    pairs_P: NDArray[np.uint64] = DiskArrays(folder).joined(by_band, np.uint64)
    pairs_P.sort()
    with (folder / _PAIRS).open("wb") as file:
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


def _write_pairs(band: _Band, folder: Path) -> Done:
    """Write each pair of one band once; the facts are the numbers of pairs by part."""
    hashes = DiskArrays(folder).joined((bucket.band(band.number) for bucket in band.buckets), np.uint64)
    counts: dict[int, int] = defaultdict(int)
    for hash_T, text_T in _parts(hashes, mapped(band.places, np.int64), folder):
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
