"""Which texts stay, and on which side: near-duplicates out, whatever is similar together, the rest by content.

Names end in their shape: N texts, E edges. Texts are numbered by their place in the source, earliest first.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozeline.errors import DataError
from clozeline.text.near_duplicates import Edges
from clozeline.text.sketches import Sketches

TRAIN, VALIDATION, HOLDOUT = range(3)
SPLIT_NAMES = ("train", "validation", "holdout")
MAX_GROUP_TEXTS = 200
"""A larger group goes to train: it would make a held-out part mostly variations of one text."""
_PAIRS_AT_A_TIME = 10_000


@dataclass(frozen=True)
class SplitShares:
    validation: float
    holdout: float


@dataclass(frozen=True)
class Groups:
    """Texts that must stay on one side; `root_N` is the earliest text of each text's group."""

    root_N: NDArray[np.int64]
    size_N: NDArray[np.int64]
    """Texts in the group of each text, dropped ones not counted."""


def near_duplicates(edges: Edges, num_texts: int, minimum: float) -> NDArray[np.bool_]:
    """Mark each text that is near to an earlier one which is kept itself, so that chains do not drop everything."""
    near_E = edges.similarity_E >= minimum
    earlier, later = edges.earlier_E[near_E], edges.later_E[near_E]
    order = np.lexsort((earlier, later))
    dropped = bytearray(num_texts)
    for first, second in _number_pairs(earlier[order], later[order]):
        if not dropped[first]:
            dropped[second] = 1
    return np.frombuffer(dropped, dtype=bool)


def groups(edges: Edges, sketches: Sketches, dropped_N: NDArray[np.bool_]) -> Groups:
    """Join similar texts, and the parts of one document, into groups.

    Similarity to a dropped text joins too: its two neighbours may share much that they were never compared for.
    """
    root = array("q", range(sketches.num_texts))
    for first, second in _joined(edges, sketches):
        earlier, later = sorted((_root(root, first), _root(root, second)))
        root[later] = earlier
    root_N = np.fromiter((_root(root, text) for text in range(sketches.num_texts)), np.int64, sketches.num_texts)
    return Groups(root_N, np.bincount(root_N[~dropped_N], minlength=sketches.num_texts)[root_N])


def assign_sides(groups: Groups, draw_N: NDArray[np.float64], shares: SplitShares) -> NDArray[np.uint8]:
    """Draw each group's side by its earliest text: texts that are added after it do not move it."""
    draw_N = draw_N[groups.root_N]
    sides_N = np.full(len(draw_N), TRAIN, dtype=np.uint8)
    sides_N[draw_N < shares.validation + shares.holdout] = HOLDOUT
    sides_N[draw_N < shares.validation] = VALIDATION
    sides_N[groups.size_N > MAX_GROUP_TEXTS] = TRAIN
    return sides_N


def _joined(edges: Edges, sketches: Sketches) -> Iterator[tuple[int, int]]:
    yield from _number_pairs(edges.earlier_E, edges.later_E)
    for text in np.flatnonzero(sketches.parent_N[1:] == sketches.parent_N[:-1]).tolist():
        yield text, text + 1


def _number_pairs(first_E: NDArray[np.int64], second_E: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Python's numbers, made some thousands at a time: they take eight times the memory of an array's."""
    for start in range(0, len(first_E), _PAIRS_AT_A_TIME):
        part = slice(start, start + _PAIRS_AT_A_TIME)
        yield from zip(first_E[part].tolist(), second_E[part].tolist(), strict=True)


def _root(root: "array[int]", text: int) -> int:
    while root[text] != text:
        root[text] = root[root[text]]
        text = root[text]
    return text


def check_sides(sides_N: NDArray[np.uint8], groups: Groups, shares: SplitShares, origin: str) -> None:
    """Raise a DataError when a part that was asked for got no text."""
    num_groups = len(np.unique(groups.root_N))
    wanted = {TRAIN: 1 - shares.validation - shares.holdout, VALIDATION: shares.validation, HOLDOUT: shares.holdout}
    for side, share in wanted.items():
        if share > 0 and not (sides_N == side).any():
            raise DataError(
                f"{origin}: too little text to split, `{SPLIT_NAMES[side]}` got none",
                given=f"{len(sides_N)} texts in {num_groups} groups of similar texts, and a share of {share:g} of them",
                expected=f"at least {int(np.ceil(3 / share))} texts that are not similar to each other",
                do="add text, or raise that share in params.yaml; if one plain text file holds many texts, "
                "see preprocess.source.one_document_per",
            )
