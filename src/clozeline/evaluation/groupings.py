"""How targets are told apart when their losses are looked at: by document, confidence, frequency, place, word class.

Shapes: T targets of a batch, N content tokens of a batch, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from clozeline.encoder.batches import Split
from clozeline.evaluation.answers import Answers
from clozeline.evaluation.asking import Asked
from clozeline.tokens.draws import follows
from clozeline.tokens.masking import Ids
from clozeline.tokens.rows import NUM_BOUNDARY_TOKENS
from clozeline.tokens.spelling import Spelling

NUM_CONFIDENCE_BINS = 15
"""As in Guo et al. 2017, section 5."""
_MOST_PLACE_BINS = 16
WORD_CLASSES = ("whole word", "first piece", "continuation")


class Grouping(Protocol):
    """Which group each target of a batch is in."""

    @property
    def num_groups(self) -> int: ...

    def groups(self, asked: Asked, answers: Answers) -> Ids:
        """`group_T`."""
        ...


@dataclass(frozen=True)
class ByDocument:
    """Document i of a split is in group i modulo `num_groups`."""

    num_groups: int

    def groups(self, asked: Asked, answers: Answers) -> Ids:
        return asked.tokens.document_N[asked.target_T] % self.num_groups


@dataclass(frozen=True)
class ByConfidence:
    """Bins of equal width: group i is (i / 15, (i + 1) / 15]."""

    num_groups: int = NUM_CONFIDENCE_BINS

    def groups(self, asked: Asked, answers: Answers) -> Ids:
        bin_T = np.ceil(answers.confidence_T * self.num_groups).astype(np.int64) - 1
        return np.clip(bin_T, 0, self.num_groups - 1)


@dataclass(frozen=True)
class ByFrequency:
    """How often the token occurs in training text: never, 1-9 times, 10-99 times, …"""

    group_V: Ids
    names: Sequence[str]
    num_kinds_G: Ids
    """Ordinary tokens of the vocabulary in each group."""

    @classmethod
    def of(cls, counts_V: Ids, split: Split) -> Self:
        decades = [10**power for power in range(len(str(int(counts_V.max()))))]
        names = ["0", *(f"{first}-{first * 10 - 1}" for first in decades)]
        group_V = np.searchsorted(decades, counts_V, side="right")
        return cls(group_V, names, np.bincount(group_V[split.vocabulary.ordinary_ids], minlength=len(names)))

    @property
    def num_groups(self) -> int:
        return len(self.names)

    def groups(self, asked: Asked, answers: Answers) -> Ids:
        return self.group_V[asked.tokens.input_ids_N[asked.target_T]]


@dataclass(frozen=True)
class ByPlace:
    """Place in the row, counted from 1 behind [CLS]: in a causal model, how much there was to go by."""

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
        """The first and the last of a group."""
        return group * self.width + 1, min((group + 1) * self.width, self.capacity)

    def groups(self, asked: Asked, answers: Answers) -> Ids:
        return asked.tokens.place_N[asked.target_T] // self.width


@dataclass(frozen=True)
class ByWordClass:
    """A word of one token, the first token of a longer one, or one of its others, as they stand in the row."""

    spelling: Spelling

    @property
    def num_groups(self) -> int:
        return len(WORD_CLASSES)

    def groups(self, asked: Asked, answers: Answers) -> Ids:
        tokens = asked.tokens
        follows_N = follows(tokens.document_N, tokens.position_N)
        continues_N = self.spelling.continues_word(tokens.input_ids_N, follows_N)
        is_continued_N = np.append(continues_N[1:], False)
        class_N = np.where(continues_N, 2, np.where(is_continued_N, 1, 0))
        return class_N[asked.target_T]
