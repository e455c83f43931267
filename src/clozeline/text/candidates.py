"""Candidate pairs of similar texts: pairs that share a band, found band by band, in files.

Suffixes of names give the shape: N texts, T texts of a part, P pairs. Texts are numbered in the order of the source.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.machine.workers import Workers
from clozeline.storage.arrays import DiskArrays, chunks, mapped
from clozeline.text.sketches import Sketches

_NUM_NEIGHBOURS = 4
"""Preceding texts of a band that a text is compared with, besides the first one: boilerplate stays cheap."""
_PART_TEXTS = 1 << 15
"""Approximate number of texts of a band processed at a time."""
_LATER_BITS = np.uint64(32)


@dataclass(frozen=True)
class _Band:
    hashes: Path
    places: Path
    pairs: Path


def candidates(sketches: Sketches, workers: Workers) -> NDArray[np.uint64]:
    """Return the pairs that share a band as sorted unique numbers `later << 32 | earlier`, in a memory-mapped array."""
    places = sketches.folder / "places.bin"
    sketches.place_N.tofile(places)
    bands = [_Band(path, places, path.with_suffix(".pairs")) for path in sketches.bands]
    counts = list(workers.map(_write_pairs, bands))
    pairs_P: NDArray[np.uint64] = DiskArrays(sketches.folder).empty(sum(counts), np.uint64)
    done = 0
    for band, count in zip(bands, counts, strict=True):
        of_band = mapped(band.pairs, np.uint64)
        for chunk in chunks(count):
            pairs_P[done + chunk.start : done + chunk.stop] = of_band[chunk]
        band.pairs.unlink()
        done += count
    pairs_P.sort()
    return pairs_P[: _unique_first(pairs_P)]


def unpacked(pairs_P: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return an array of two rows: earlier texts, later texts."""
    return np.stack([pairs_P & np.uint64(0xFFFFFFFF), pairs_P >> _LATER_BITS]).astype(np.int64)


def _unique_first(sorted_P: NDArray[np.uint64]) -> int:
    """Move one of each run of equal numbers to the front; return the number of runs."""
    kept = 0
    last: Any = None
    for chunk in chunks(len(sorted_P)):
        values = sorted_P[chunk].copy()
        differs = np.append(last is None or values[0] != last, values[1:] != values[:-1])
        last = values[-1]
        values = values[differs]
        sorted_P[kept : kept + len(values)] = values
        kept += len(values)
    return kept


def _write_pairs(band: _Band) -> int:
    """Write each pair of one band once; return the number of pairs."""
    count = 0
    with band.pairs.open("wb") as file:
        for hash_T, text_T in _parts(mapped(band.hashes, np.uint64), mapped(band.places, np.int64), band.pairs.parent):
            pairs = _pairs_of(hash_T, text_T)
            pairs.tofile(file)
            count += len(pairs)
    return count


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


def _pairs_of(hash_T: NDArray[np.uint64], text_T: NDArray[np.int64]) -> NDArray[np.uint64]:
    shared_T = _shared(hash_T)
    if not len(shared_T):
        return np.zeros(0, np.uint64)
    hash_T, text_T = hash_T[shared_T], text_T[shared_T]
    order_T = np.argsort(hash_T, kind="stable")
    sorted_T, text_T = hash_T[order_T], text_T[order_T]
    starts = np.flatnonzero(np.append(True, sorted_T[1:] != sorted_T[:-1]))
    first_T = np.repeat(text_T[starts], np.diff(np.append(starts, len(sorted_T))))
    alone_T = first_T == text_T
    pairs = [_packed(first_T[~alone_T], text_T[~alone_T])]
    for distance in range(1, _NUM_NEIGHBOURS + 1):
        same_T = sorted_T[:-distance] == sorted_T[distance:]
        pairs.append(_packed(text_T[:-distance][same_T], text_T[distance:][same_T]))
    values = np.sort(np.concatenate(pairs))
    unique: NDArray[np.uint64] = values[np.append(np.full(min(len(values), 1), True), values[1:] != values[:-1])]
    return unique


def _shared(hash_T: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the indices of the hashes that occur more than once. They are few; sorting these alone halves the time."""
    order_T = np.argsort(hash_T)
    sorted_T = hash_T[order_T]
    same = sorted_T[1:] == sorted_T[:-1]
    is_shared_T = np.append(False, same) | np.append(same, False)
    return np.sort(order_T[is_shared_T])


def _packed(earlier_P: NDArray[np.int64], later_P: NDArray[np.int64]) -> NDArray[np.uint64]:
    return (later_P.astype(np.uint64) << _LATER_BITS) | earlier_P.astype(np.uint64)
