"""Near-duplicates among sketched texts: candidates by shared bands, then the exact Jaccard similarity of each.

Suffixes of names give the shape: P pairs, E edges, S shingles. Texts are numbered in the order of the source.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clozeline.cluster.ledger import Done, Ledger
from clozeline.progress import ProgressBar
from clozeline.storage.arrays import chunks, mapped
from clozeline.text.candidates import Candidates, candidates
from clozeline.text.sketches import Sketches
from clozeline.words.numbers.runs import run_positions

_TASK_SHINGLES = 1_500_000
_CHUNK_SHINGLES = 150_000
_TASK_PAIRS = 20_000
_FILES = {"earlier": np.int64, "later": np.int64, "similarity": np.float64}


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

    number: int
    candidates: str
    """Key of the task that found them."""
    minimum: float
    end: int
    """Number of candidates of the part that are compared or ruled out after these."""
    texts_2P: NDArray[np.int64]
    shingles: tuple[Path, ...]
    file_2P: NDArray[np.int64]
    """Number of each text's file in `shingles`."""
    starts_2P: NDArray[np.int64]
    counts_2P: NDArray[np.int64]

    @property
    def name(self) -> str:
        return f"comparison {self.number}"

    @property
    def inputs(self) -> list[object]:
        return [self.candidates, self.number, self.minimum]

    @property
    def reads(self) -> tuple[Path, ...]:
        return self.shingles


def similar_pairs(sketches: Sketches, minimum: float, ledger: Ledger) -> Edges:
    """Find the pairs whose sets of word shingles have a Jaccard similarity of `minimum` or more.

    Every candidate is checked. A pair that the bands miss stays unseen: at most 3 % at `minimum`, fewer above.
    """
    parts = candidates(sketches, ledger)
    bar = ProgressBar("Comparing", sum(len(part.packed_P) for part in parts))
    paths = {name: sketches.folder / f"{name}.bin" for name in _FILES}
    with ExitStack() as opened, bar:
        files = {name: opened.enter_context(path.open("wb")) for name, path in paths.items()}
        for part in parts:
            before = bar.done
            for record in ledger.run(_compare, _to_compare(sketches, part, minimum)):
                for name, file in files.items():
                    file.write((record.folder / f"{name}.bin").read_bytes())
                bar.advance(before + record.facts - bar.done, ledger.workers.note)
            bar.advance(before + len(part.packed_P) - bar.done)
    earlier, later, similarity = (mapped(paths[name], kind) for name, kind in _FILES.items())
    return Edges(earlier, later, similarity, sum(len(part.packed_P) for part in parts))


def _to_compare(sketches: Sketches, part: Candidates, minimum: float) -> Iterator[_Pairs]:
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
            yield _Pairs(
                number=number,
                candidates=part.key,
                minimum=minimum,
                end=some.stop,
                texts_2P=texts_2P[:, cut],
                shingles=tuple(sketches.buckets[bucket].shingles for bucket in used.tolist()),
                file_2P=file.reshape(2, -1),
                starts_2P=sketches.shingle_start_N[texts_2P[:, cut]],
                counts_2P=counts_2P[:, cut],
            )
            number += 1


def _cuts(counts_2P: NDArray[np.int64], num_shingles: int) -> Iterator[slice]:
    """Cut pairs into runs of about this many shingles."""
    number_P = np.cumsum(counts_2P.sum(axis=0)) // num_shingles
    cuts = (np.flatnonzero(np.diff(number_P)) + 1).tolist()
    return (slice(first, end) for first, end in zip([0, *cuts], [*cuts, len(number_P)], strict=True) if end > first)


def _compare(pairs: _Pairs, folder: Path) -> Done:
    """Write the similar pairs and their Jaccard similarity; the facts are how far the part is compared."""
    hashes_S = _hashes(pairs)
    ends_2P = np.cumsum(pairs.counts_2P.ravel()).reshape(2, -1)
    found = [_similar(pairs, cut, hashes_S, ends_2P) for cut in _cuts(pairs.counts_2P, _CHUNK_SHINGLES)]
    for (name, kind), parts in zip(_FILES.items(), zip(*found, strict=True), strict=True):
        np.ascontiguousarray(np.concatenate(parts), kind).tofile(folder / f"{name}.bin")
    return Done(pairs.end)


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
    pairs: _Pairs, cut: slice, hashes_S: NDArray[np.uint32], ends_2P: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the similar pairs among some: earlier texts, later texts, similarity."""
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
    similar_P = jaccard_P >= pairs.minimum
    earlier, later = pairs.texts_2P[:, cut][:, similar_P]
    return earlier, later, jaccard_P[similar_P]
