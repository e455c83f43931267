"""Near-duplicates among sketched texts: candidates by shared bands, then the exact Jaccard similarity of each.

Suffixes of names give the shape: P pairs, E edges, S shingles. Texts are numbered in the order of the source.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clozeline.machine.workers import Workers
from clozeline.storage.arrays import chunks, mapped
from clozeline.text.candidates import candidates, unpacked
from clozeline.text.sketches import Sketches
from clozeline.words.numbers.runs import run_positions

_CHUNK_SHINGLES = 150_000
_CHUNK_PAIRS = 20_000


@dataclass(frozen=True)
class Edges:
    """Pairs of similar texts, `earlier` < `later`, sorted by `later`, then `earlier`."""

    earlier_E: NDArray[np.int64]
    later_E: NDArray[np.int64]
    similarity_E: NDArray[np.float64]
    num_candidates: int


@dataclass(frozen=True)
class _Chunk:
    """Pairs to compare, and the location of their texts' shingles (two rows: earlier, later)."""

    shingles: Path
    minimum: float
    texts_2P: NDArray[np.int64]
    starts_2P: NDArray[np.int64]
    counts_2P: NDArray[np.int64]


def similar_pairs(sketches: Sketches, minimum: float, workers: Workers) -> Edges:
    """Find the pairs whose sets of word shingles have a Jaccard similarity of `minimum` or more.

    Every candidate is checked. A pair that the bands miss stays unseen: at most 3 % at `minimum`, fewer above.
    """
    pairs_P = candidates(sketches, workers)
    earlier, later, similarity = (sketches.folder / f"{name}.bin" for name in ("earlier", "later", "similarity"))
    with earlier.open("wb") as earlier_file, later.open("wb") as later_file, similarity.open("wb") as similarity_file:
        for texts_2E, similarity_E in workers.map(_compare, _chunks(sketches, pairs_P, minimum)):
            texts_2E[0].tofile(earlier_file)
            texts_2E[1].tofile(later_file)
            similarity_E.tofile(similarity_file)
    return Edges(mapped(earlier, np.int64), mapped(later, np.int64), mapped(similarity, np.float64), len(pairs_P))


def _chunks(sketches: Sketches, pairs_P: NDArray[np.uint64], minimum: float) -> Iterator[_Chunk]:
    """Yield chunks of about `_CHUNK_SHINGLES` shingles, without the pairs that the sizes alone rule out.

    A set of less than `minimum` times the size of the other has a similarity below `minimum`.
    """
    for some in chunks(len(pairs_P), _CHUNK_PAIRS):
        texts_2P = unpacked(pairs_P[some])
        counts_2P = sketches.num_shingles_N[texts_2P]
        is_possible_P = counts_2P.min(axis=0) / counts_2P.max(axis=0) >= minimum
        texts_2P, counts_2P = texts_2P[:, is_possible_P], counts_2P[:, is_possible_P]
        number_P = np.cumsum(counts_2P.sum(axis=0)) // _CHUNK_SHINGLES
        cuts = np.flatnonzero(np.diff(number_P)) + 1
        for first, end in zip([0, *cuts], [*cuts, texts_2P.shape[1]], strict=True):
            texts_2C = texts_2P[:, first:end]
            starts_2C = sketches.shingle_start_N[texts_2C]
            yield _Chunk(sketches.shingles, minimum, texts_2C, starts_2C, counts_2P[:, first:end])


def _compare(chunk: _Chunk) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the similar pairs of a chunk and their Jaccard similarity."""
    num_pairs = chunk.texts_2P.shape[1]
    counts_2P = chunk.counts_2P.ravel()
    hashes_S = mapped(chunk.shingles, np.uint32)[run_positions(chunk.starts_2P.ravel(), counts_2P)]
    pair_S = np.repeat(np.tile(np.arange(num_pairs, dtype=np.uint64), 2), counts_2P)
    # The sets of the earlier and of the later texts are each sorted, so a stable sort merges them, 20 times as fast.
    keys_S = np.sort((pair_S << np.uint64(32)) | hashes_S, kind="stable")
    shared = keys_S[1:][keys_S[1:] == keys_S[:-1]] >> np.uint64(32)
    common_P = np.bincount(shared.astype(np.int64), minlength=num_pairs)
    jaccard_P = common_P / (chunk.counts_2P.sum(axis=0) - common_P)
    similar_P = jaccard_P >= chunk.minimum
    return chunk.texts_2P[:, similar_P], jaccard_P[similar_P]
