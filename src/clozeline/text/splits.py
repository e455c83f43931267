"""Assignment of texts to splits: near-duplicates are dropped, similar texts stay together, content decides the rest.

Suffixes of names give the shape: N texts, E edges. Texts are numbered in the order of the source.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozeline.artifacts.preprocess.clean_text import SPLITS
from clozeline.errors import DataError
from clozeline.storage.arrays import Empty, chunks
from clozeline.text.near_duplicates import Edges
from clozeline.text.sketches import Sketches

TRAIN, VALIDATION, HOLDOUT = range(len(SPLITS))
MAX_GROUP_TEXTS = 200
"""A larger group goes to training, because a held-out split would consist mostly of variations of one text."""
_PAIRS_AT_A_TIME = 10_000


@dataclass(frozen=True)
class SplitShares:
    validation: float
    holdout: float


@dataclass(frozen=True)
class Groups:
    """Groups of texts that must share a split; `root_N` is the earliest text of each text's group."""

    root_N: NDArray[np.int64]
    size_N: NDArray[np.int64]
    """Number of kept texts in the group of each text."""

    def sizes(self) -> Iterator[NDArray[np.int64]]:
        """Yield the size of each group, chunk by chunk."""
        for chunk in chunks(len(self.root_N)):
            is_root_C = self.root_N[chunk] == np.arange(chunk.start, chunk.stop)
            yield self.size_N[chunk][is_root_C]


def near_duplicates(edges: Edges, num_texts: int, minimum: float, empty: Empty = np.empty) -> NDArray[np.bool_]:
    """Mark each text that is similar to an earlier kept text. A dropped text drops no other text of a chain."""
    dropped_N = empty(num_texts, np.uint8)
    dropped_N[:] = 0
    dropped = dropped_N.data
    # Edges are sorted by their earlier text, so every edge that could drop a text precedes the edges that start at it.
    for first, second in _number_pairs(edges, minimum):
        if not dropped[first]:
            dropped[second] = 1
    return dropped_N.view(np.bool_)


def groups(edges: Edges, sketches: Sketches, dropped_N: NDArray[np.bool_], empty: Empty = np.empty) -> Groups:
    """Join similar texts, and the parts of one document, into groups.

    Similarity to a dropped text joins too: its two neighbours may share much without ever having been compared.
    """
    root_N, size_N, size_of_root_N = (empty(sketches.num_texts, np.int64) for _ in range(3))
    for chunk in chunks(sketches.num_texts):
        root_N[chunk] = np.arange(chunk.start, chunk.stop)
        size_of_root_N[chunk] = 0
    root = root_N.data
    for first, second in _joined(edges, sketches):
        earlier, later = sorted((_root(root, first), _root(root, second)))
        root[later] = earlier
    for chunk in chunks(sketches.num_texts):
        root_N[chunk] = _roots(root_N, root_N[chunk])
        kept_roots, counts = np.unique(root_N[chunk][~dropped_N[chunk]], return_counts=True)
        size_of_root_N[kept_roots] += counts
    for chunk in chunks(sketches.num_texts):
        size_N[chunk] = size_of_root_N[root_N[chunk]]
    return Groups(root_N, size_N)


def assign_sides(
    groups: Groups, draw_N: NDArray[np.float64], shares: SplitShares, empty: Empty = np.empty
) -> NDArray[np.uint8]:
    """Draw each group's split by its earliest text, so that texts added after it do not move it."""
    sides_N: NDArray[np.uint8] = empty(len(draw_N), np.uint8)
    for chunk in chunks(len(draw_N)):
        draw_C = draw_N[groups.root_N[chunk]]
        side_C = np.full(len(draw_C), TRAIN, dtype=np.uint8)
        side_C[draw_C < shares.validation + shares.holdout] = HOLDOUT
        side_C[draw_C < shares.validation] = VALIDATION
        side_C[groups.size_N[chunk] > MAX_GROUP_TEXTS] = TRAIN
        sides_N[chunk] = side_C
    return sides_N


def _joined(edges: Edges, sketches: Sketches) -> Iterator[tuple[int, int]]:
    yield from _number_pairs(edges)
    parent_N = sketches.parent_N
    for chunk in chunks(max(len(parent_N) - 1, 0)):
        next_C = parent_N[chunk.start + 1 : chunk.stop + 1]
        for text in (np.flatnonzero(next_C == parent_N[chunk]) + chunk.start).tolist():
            yield text, text + 1


def _number_pairs(edges: Edges, minimum: float = 0.0) -> Iterator[tuple[int, int]]:
    """Yield edges of at least this similarity as Python integers, some thousands at a time because these are large."""
    for chunk in chunks(len(edges.similarity_E), _PAIRS_AT_A_TIME):
        is_near_C = edges.similarity_E[chunk] >= minimum
        earlier_C, later_C = edges.earlier_E[chunk][is_near_C], edges.later_E[chunk][is_near_C]
        yield from zip(earlier_C.tolist(), later_C.tolist(), strict=True)


def _root(root: "memoryview[int]", text: int) -> int:
    while root[text] != text:
        root[text] = root[root[text]]
        text = root[text]
    return text


def _roots(root_N: NDArray[np.int64], texts: NDArray[np.int64]) -> NDArray[np.int64]:
    while (further := root_N[texts] != texts).any():
        texts = np.where(further, root_N[texts], texts)
    return texts


def kept_by_side(sides_N: NDArray[np.uint8], dropped_N: NDArray[np.bool_]) -> list[int]:
    """Return the number of kept texts of each split."""
    counts = np.zeros(len(SPLITS), dtype=np.int64)
    for chunk in chunks(len(sides_N)):
        counts += np.bincount(sides_N[chunk][~dropped_N[chunk]], minlength=len(SPLITS))
    return counts.tolist()


def check_sides(num_kept_by_side: list[int], groups: Groups, shares: SplitShares, origin: str) -> None:
    """Check that every requested split got a text.

    Raises:
        DataError: a split with a share above 0 is empty.
    """
    num_texts, num_groups = sum(num_kept_by_side), sum(map(len, groups.sizes()))
    wanted = {TRAIN: 1 - shares.validation - shares.holdout, VALIDATION: shares.validation, HOLDOUT: shares.holdout}
    for side, share in wanted.items():
        if share > 0 and not num_kept_by_side[side]:
            raise DataError(
                f"{origin}: too little text to split: `{SPLITS[side]}` is empty",
                given=f"{num_texts} texts in {num_groups} groups of similar texts, of which this split gets {share:g}",
                expected=f"at least {int(np.ceil(3 / share))} texts that are not similar to each other",
                do="add text, or raise the share of this split; if one plain text file holds many texts, "
                "see `source.one_document_per`",
            )
