"""Near-duplicates among sketched texts: candidates by shared bands, then the true Jaccard similarity of each.

Names end in their shape: N texts, P pairs, E edges, S shingles. Texts are numbered by their place in the source.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clozeline.text.sketches import Sketches
from clozeline.text.workers import Workers

_NUM_NEIGHBOURS = 4
"""In a band, a text is compared with so many before it and with the first, not with all: boilerplate stays cheap."""
_CHUNK_SHINGLES = 150_000
_UNPACKED_PAIRS = 50_000
"""Pairs are kept as one number each; so many at a time are taken apart."""
_HASH_BYTES = 4
_EARLIER_BITS = np.uint64(32)


@dataclass(frozen=True)
class Edges:
    """Pairs of similar texts, `earlier` < `later`, sorted by `earlier`, then `later`."""

    earlier_E: NDArray[np.int64]
    later_E: NDArray[np.int64]
    similarity_E: NDArray[np.float64]
    num_candidates: int


@dataclass(frozen=True)
class _Chunk:
    """Pairs to compare, and where the shingles of their texts are (two rows: earlier, later)."""

    shingles: Path
    texts_2P: NDArray[np.int64]
    starts_2P: NDArray[np.int64]
    counts_2P: NDArray[np.int64]


def similar_pairs(sketches: Sketches, minimum: float, workers: Workers) -> Edges:
    """Find the pairs whose sets of word shingles have a Jaccard similarity of `minimum` or more.

    Every candidate is checked. A pair that the bands miss stays unseen: at most 3 % at `minimum`, fewer above.
    """
    pairs_P = _candidates(sketches)
    similarity_P = np.empty(len(pairs_P))
    done = 0
    for part in workers.map(_jaccard, _chunks(sketches, pairs_P)):
        similarity_P[done : done + len(part)] = part
        done += len(part)
    similar_P = similarity_P >= minimum
    earlier_E, later_E = _unpacked(pairs_P[similar_P])
    return Edges(earlier_E, later_E, similarity_P[similar_P], len(pairs_P))


def _candidates(sketches: Sketches) -> NDArray[np.uint64]:
    """Pairs that share a band, as sorted unique numbers `earlier << 32 | later`."""
    pairs_P = np.empty(0, dtype=np.uint64)
    for path in sketches.bands:
        band_N = np.fromfile(path, dtype=np.uint64)[sketches.place_N]
        pairs_P = _sorted_unique([pairs_P, *_pairs_of_band(band_N)])
    return pairs_P


def _pairs_of_band(band_N: NDArray[np.uint64]) -> list[NDArray[np.uint64]]:
    order_N = np.argsort(band_N, kind="stable")
    sorted_N = band_N[order_N]
    starts = np.flatnonzero(np.concatenate([[True], sorted_N[1:] != sorted_N[:-1]]))
    first_N = np.repeat(order_N[starts], np.diff(np.append(starts, len(band_N))))
    alone = first_N == order_N
    pairs = [_packed(first_N[~alone], order_N[~alone])]
    for distance in range(1, _NUM_NEIGHBOURS + 1):
        same = sorted_N[:-distance] == sorted_N[distance:]
        pairs.append(_packed(order_N[:-distance][same], order_N[distance:][same]))
    return pairs


def _sorted_unique(arrays: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """As `np.unique`, which hashes first and takes ten times as long on numbers that differ."""
    values = np.sort(np.concatenate(arrays))
    unique: NDArray[np.uint64] = values[np.append(np.full(min(len(values), 1), True), values[1:] != values[:-1])]
    return unique


def _packed(earlier_P: NDArray[np.int64], later_P: NDArray[np.int64]) -> NDArray[np.uint64]:
    return (earlier_P.astype(np.uint64) << _EARLIER_BITS) | later_P.astype(np.uint64)


def _unpacked(pairs_P: NDArray[np.uint64]) -> NDArray[np.int64]:
    return np.stack([pairs_P >> _EARLIER_BITS, pairs_P & np.uint64(0xFFFFFFFF)]).astype(np.int64)


def _chunks(sketches: Sketches, pairs_P: NDArray[np.uint64]) -> Iterator[_Chunk]:
    """Cut the pairs where about `_CHUNK_SHINGLES` have come together."""
    for start in range(0, max(len(pairs_P), 1), _UNPACKED_PAIRS):
        texts_2P = _unpacked(pairs_P[start : start + _UNPACKED_PAIRS])
        counts_2P = sketches.num_shingles_N[texts_2P]
        number_P = np.cumsum(counts_2P.sum(axis=0)) // _CHUNK_SHINGLES
        cuts = np.flatnonzero(np.diff(number_P)) + 1
        for first, end in zip([0, *cuts], [*cuts, texts_2P.shape[1]], strict=True):
            texts_2C = texts_2P[:, first:end]
            starts_2C = sketches.shingle_start_N[texts_2C]
            yield _Chunk(sketches.shingles, texts_2C, starts_2C, counts_2P[:, first:end])


def _jaccard(chunk: _Chunk) -> NDArray[np.float64]:
    """Size of the intersection over size of the union, for each pair of the chunk."""
    num_pairs = chunk.texts_2P.shape[1]
    sets = _read_sets(chunk)
    hashes_S = np.concatenate([sets[text] for text in chunk.texts_2P.ravel().tolist()] or [np.empty(0, np.uint32)])
    pair_S = np.repeat(np.tile(np.arange(num_pairs, dtype=np.uint64), 2), chunk.counts_2P.ravel())
    keys_S = np.sort((pair_S << np.uint64(32)) | hashes_S)
    shared = keys_S[1:][keys_S[1:] == keys_S[:-1]] >> np.uint64(32)
    common_P = np.bincount(shared.astype(np.int64), minlength=num_pairs)
    jaccard_P: NDArray[np.float64] = common_P / (chunk.counts_2P.sum(axis=0) - common_P)
    return jaccard_P


def _read_sets(chunk: _Chunk) -> dict[int, NDArray[np.uint32]]:
    texts, first = np.unique(chunk.texts_2P.ravel(), return_index=True)
    starts, counts = chunk.starts_2P.ravel()[first], chunk.counts_2P.ravel()[first]
    with chunk.shingles.open("rb") as file:
        return {
            text: np.frombuffer(os.pread(file.fileno(), count * _HASH_BYTES, start * _HASH_BYTES), dtype=np.uint32)
            for text, start, count in zip(texts.tolist(), starts.tolist(), counts.tolist(), strict=True)
        }
