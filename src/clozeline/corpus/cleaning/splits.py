"""Assignment of texts to splits: content draws the split of a text that resembles no earlier one; others follow.

Each decision depends on earlier texts only. A corpus that grows at its end therefore moves no text to another split.
Suffixes of names give the shape: N texts, E edges. Texts are numbered in the order of the source.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Self

import numpy as np
from numpy.typing import NDArray

from clozeline.corpus.cleaning.documents import DropReason
from clozeline.corpus.cleaning.near_duplicates import Edges, Sketches
from clozeline.params.text import PreprocessParams
from clozeline.records.clean_text import SPLITS
from clozeline.system import arrays, errors

TRAIN, VALIDATION, HOLDOUT = range(len(SPLITS))
# Limit of a group outside of training: a larger one would make most of the split variations of one text.
MAX_GROUP_TEXTS = 200
KEPT, NEAR_DUPLICATE, TWO_SPLITS, FULL_GROUP = range(4)
# Fates of texts that are not kept, as reasons.
DROPPED = {
    NEAR_DUPLICATE: DropReason.NEAR_DUPLICATE,
    TWO_SPLITS: DropReason.TWO_SPLITS,
    FULL_GROUP: DropReason.FULL_GROUP,
}
_NO_GROUP = -1
_PAIRS_AT_A_TIME = 10_000


# Number of texts at the beginning of a source that give more to validation, so that a small source has about 150
# validation texts: 100 prove INT8, others calibrate it, and the draws of the split vary.
NUM_FIRST_TEXTS = 1_500
# Share of these texts that validation gets at least.
_FIRST_VALIDATION = 0.1


@dataclass(frozen=True)
class SplitShares:
    validation: float
    holdout: float
    more_validation: float = 0.0  # part of the training share that the first texts of the source give to validation

    @classmethod
    def of(cls, params: PreprocessParams) -> Self:
        given, training = params.validation_fraction, 1 - params.validation_fraction - params.holdout_fraction
        return cls(given, params.holdout_fraction, min(max(_FIRST_VALIDATION - given, 0.0), training / 2))


@dataclass(frozen=True)
class SplitDecision:
    """Fate, group and split of each text. A group is a text and those that follow it into its split."""

    fate_N: NDArray[np.uint8]
    # Earliest text of each text's group; -1 for a text between two splits, which belongs to none.
    root_N: NDArray[np.int64]
    size_N: NDArray[np.int64]  # number of kept texts in the group of each root
    side_N: NDArray[np.uint8]  # split of each kept text

    def sizes(self) -> Iterator[NDArray[np.int64]]:
        """Yield the size of each group, chunk by chunk."""
        for chunk in arrays.chunks(len(self.root_N)):
            yield self.size_N[chunk][self._is_root(chunk)]

    def num_full(self) -> int:
        """Return the number of groups that take no more texts."""
        return sum(
            int((self._is_root(chunk) & (self.side_N[chunk] != TRAIN) & (self.size_N[chunk] >= MAX_GROUP_TEXTS)).sum())
            for chunk in arrays.chunks(len(self.root_N))
        )

    def num_dropped(self) -> dict[DropReason, int]:
        counts = np.zeros(len(DROPPED) + 1, dtype=np.int64)
        for chunk in arrays.chunks(len(self.fate_N)):
            counts += np.bincount(self.fate_N[chunk], minlength=len(counts))
        return {reason: int(counts[fate]) for fate, reason in DROPPED.items()}

    def kept_by_side(self) -> list[int]:
        """Return the number of kept texts of each split."""
        counts = np.zeros(len(SPLITS), dtype=np.int64)
        for chunk in arrays.chunks(len(self.fate_N)):
            counts += np.bincount(self.side_N[chunk][self.fate_N[chunk] == KEPT], minlength=len(SPLITS))
        return counts.tolist()

    def _is_root(self, chunk: slice) -> NDArray[np.bool_]:
        is_root_C: NDArray[np.bool_] = self.root_N[chunk] == np.arange(chunk.start, chunk.stop)
        return is_root_C


def decide(
    edges: Edges, sketches: Sketches, shares: SplitShares, near_duplicate: float, empty: arrays.Empty = np.empty
) -> SplitDecision:
    """Decide the fate of each text by the earlier texts that it resembles.

    The first rule that applies:
    1. A text with a similarity of `near_duplicate` or more to a kept text is dropped.
    2. A text that resembles texts of two splits is dropped: in either of them it would be known from the other.
    3. A text follows the earliest text that it resembles, unless that group is full: then it is dropped.
    4. Content draws the split.

    A text also follows the earlier parts of its document. A near-duplicate stands for the text it duplicates: texts
    that resemble it follow that text, although they may have too little in common with it to be compared.
    """
    found = _undecided(sketches, shares, empty)
    fate, root, size, side = (array.data for array in (found.fate_N, found.root_N, found.size_N, found.side_N))
    for text, resembled in _resembled(edges, sketches.parent_N, found.root_N):
        if not resembled:
            continue
        same = next((other for other, s in resembled if s >= near_duplicate and fate[other] == KEPT), None)
        roots = [root[other] for other, _ in resembled]
        root[text] = roots[0] if same is None else root[same]
        side[text] = side[root[text]]
        if same is not None:
            fate[text] = NEAR_DUPLICATE
        elif any(side[other] != side[text] for other in roots):
            fate[text], root[text] = TWO_SPLITS, _NO_GROUP
        elif side[text] != TRAIN and size[root[text]] >= MAX_GROUP_TEXTS:
            fate[text] = FULL_GROUP
        else:
            size[root[text]] += 1
    return found


def _undecided(sketches: Sketches, shares: SplitShares, empty: arrays.Empty) -> SplitDecision:
    """Return every text as kept, alone in its group, with the split that its content draws."""
    num_texts = sketches.num_texts
    fate_N, side_N = empty(num_texts, np.uint8), empty(num_texts, np.uint8)
    root_N, size_N = empty(num_texts, np.int64), empty(num_texts, np.int64)
    for chunk in arrays.chunks(num_texts):
        draw_C = sketches.draw_N[chunk]
        side_C = np.full(len(draw_C), TRAIN, dtype=np.uint8)
        side_C[draw_C < shares.validation + shares.holdout] = HOLDOUT
        side_C[draw_C < shares.validation] = VALIDATION
        first_C = draw_C[: max(NUM_FIRST_TEXTS - chunk.start, 0)]
        side_C[: len(first_C)][first_C >= 1 - shares.more_validation] = VALIDATION
        fate_N[chunk], side_N[chunk], size_N[chunk] = KEPT, side_C, 1
        root_N[chunk] = np.arange(chunk.start, chunk.stop)
    return SplitDecision(fate_N, root_N, size_N, side_N)


def _resembled(
    edges: Edges, parent_N: NDArray[np.int64], root_N: NDArray[np.int64]
) -> Iterator[tuple[int, list[tuple[int, float]]]]:
    """Yield texts in order, each with the earlier texts of a group that it resembles (and the similarity).

    The first part of its document that has a group counts as resembled with similarity 0. `root_N` is read when a text
    is yielded, because the caller decides about the earlier texts meanwhile.
    """
    root, parent = root_N.data, parent_N
    document, first_part = -1, -1
    for text, pairs in groupby(merge(_edges(edges), _later_parts(parent_N)), itemgetter(0)):
        resembled = [(earlier, similarity) for _, earlier, similarity in pairs if earlier >= 0]
        if text and parent[text] == parent[text - 1]:
            if parent[text] != document or root[first_part] == _NO_GROUP:
                document, first_part = parent[text], text - 1
            resembled = sorted([*resembled, (first_part, 0.0)])
        yield text, [pair for pair in resembled if root[pair[0]] != _NO_GROUP]


def _edges(edges: Edges) -> Iterator[tuple[int, int, float]]:
    """Yield edges as Python numbers, some thousands at a time because these are large."""
    columns: Sequence[NDArray[np.generic]] = (edges.later_E, edges.earlier_E, edges.similarity_E)
    for chunk in arrays.chunks(len(edges.similarity_E), _PAIRS_AT_A_TIME):
        yield from zip(*(column[chunk].tolist() for column in columns), strict=True)


def _later_parts(parent_N: NDArray[np.int64]) -> Iterator[tuple[int, int, float]]:
    """Yield each text whose predecessor is of the same document, as an edge without an earlier text."""
    for chunk in arrays.chunks(max(len(parent_N) - 1, 0)):
        next_C = parent_N[chunk.start + 1 : chunk.stop + 1]
        for text in (np.flatnonzero(next_C == parent_N[chunk]) + chunk.start + 1).tolist():
            yield text, -1, 0.0


def check_sides(decision: SplitDecision, shares: SplitShares, origin: str) -> None:
    """Check that every requested split got a text.

    Raises:
        DataError: a split with a share above 0 is empty.
    """
    num_kept_by_side = decision.kept_by_side()
    num_texts, num_groups = sum(num_kept_by_side), sum(map(len, decision.sizes()))
    validation = shares.validation + shares.more_validation
    wanted = {TRAIN: 1 - validation - shares.holdout, VALIDATION: validation, HOLDOUT: shares.holdout}
    for side, share in wanted.items():
        if share > 0 and not num_kept_by_side[side]:
            raise errors.DataError(
                f"{origin}: too little text to split: `{SPLITS[side]}` is empty ({num_texts} texts,"
                f" {num_groups} groups of similar ones)",
                do=f"have {int(np.ceil(3 / share))} such groups, raise its share, or see `source.one_document_per`",
            )
