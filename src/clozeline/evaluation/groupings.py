"""Groups of targets by which losses are summed: document, confidence, frequency, position, piece kind (whole word,
first piece, continuation).

Shapes: T targets of a batch, N content tokens of a batch, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from clozeline.evaluation.asking import Asked
from clozeline.evaluation.judged import Judged
from clozeline.language_modelling.batches import Split
from clozeline.tokens.draws import follows
from clozeline.tokens.masking import Ids
from clozeline.tokens.rows import NUM_BOUNDARY_TOKENS
from clozeline.tokens.spelling import Spelling

NUM_CONFIDENCE_BINS = 15
"""As in Guo et al. 2017, section 5."""
_MOST_PLACE_BINS = 16
WORD_CLASSES = ("whole word", "first piece", "continuation")


class Grouping(Protocol):
    """Assigns each target of a batch to a group."""

    @property
    def num_groups(self) -> int: ...

    def groups(self, asked: Asked, judged: Judged) -> Ids:
        """Return the group of each target, `group_T`."""
        ...


@dataclass(frozen=True)
class ByDocument:
    """Groups by document: document i of a split is in group i modulo `num_groups`."""

    num_groups: int

    def groups(self, asked: Asked, judged: Judged) -> Ids:
        return asked.tokens.document_N[asked.target_T] % self.num_groups


@dataclass(frozen=True)
class ByConfidence:
    """Groups by confidence, in bins of equal width: group i is (i / 15, (i + 1) / 15]."""

    num_groups: int = NUM_CONFIDENCE_BINS

    def groups(self, asked: Asked, judged: Judged) -> Ids:
        bin_T = np.ceil(judged.confidence_T * self.num_groups).astype(np.int64) - 1
        return np.clip(bin_T, 0, self.num_groups - 1)


@dataclass(frozen=True)
class ByFrequency:
    """Groups by the token's count in the training text: never, 1-9 times, 10-99 times, …."""

    group_V: Ids
    names: Sequence[str]
    num_kinds_G: Ids
    """Number of ordinary tokens of the vocabulary in each group."""

    @classmethod
    def of(cls, counts_V: Ids, split: Split) -> Self:
        decades = [10**power for power in range(len(str(int(counts_V.max()))))]
        names = ["0", *(f"{first}-{first * 10 - 1}" for first in decades)]
        group_V = np.searchsorted(decades, counts_V, side="right")
        return cls(group_V, names, np.bincount(group_V[split.vocabulary.ordinary_ids], minlength=len(names)))

    @property
    def num_groups(self) -> int:
        return len(self.names)

    def groups(self, asked: Asked, judged: Judged) -> Ids:
        return self.group_V[asked.tokens.input_ids_N[asked.target_T]]


@dataclass(frozen=True)
class ByPlace:
    """Groups by position in the row, counted from 1 after [CLS]: in a causal model, the length of the context."""

    capacity: int
    width: int

    @classmethod
    def of(cls, max_length: int) -> Self:
        capacity = max_length - NUM_BOUNDARY_TOKENS
        return cls(capacity, -(-capacity // _MOST_PLACE_BINS))

    @property
    def num_groups(self) -> int:
        return -(-self.capacity // self.width)

    def places(self, group: int) -> tuple[int, int]:
        """Return the first and the last position of a group."""
        return group * self.width + 1, min((group + 1) * self.width, self.capacity)

    def groups(self, asked: Asked, judged: Judged) -> Ids:
        return asked.tokens.place_N[asked.target_T] // self.width


@dataclass(frozen=True)
class ByWordClass:
    """Groups by piece kind: a whole word, the first piece of a longer word, or a later piece."""

    spelling: Spelling

    @property
    def num_groups(self) -> int:
        return len(WORD_CLASSES)

    def groups(self, asked: Asked, judged: Judged) -> Ids:
        tokens = asked.tokens
        follows_N = follows(tokens.row_N, tokens.position_N)
        continues_N = self.spelling.continues_word(tokens.input_ids_N, follows_N)
        is_continued_N = np.append(continues_N[1:], False)
        class_N = np.where(continues_N, 2, np.where(is_continued_N, 1, 0))
        return class_N[asked.target_T]
