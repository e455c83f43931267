"""Rows for training and evaluation, cut from token shards."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from clozeline.tokens.info import TokensInfo
from clozeline.tokens.masking import Vocabulary
from clozeline.tokens.order import Block
from clozeline.tokens.rows import NUM_BOUNDARY_TOKENS, Boundary, Rows, RowTokens, gather
from clozeline.tokens.shards import TokenShards


@dataclass(frozen=True)
class Split:
    """One split, cut into rows."""

    shards: TokenShards
    rows: Rows
    boundary: Boundary
    vocabulary: Vocabulary

    @classmethod
    def open(cls, shards: TokenShards, max_length: int) -> Self:
        return cls(shards, Rows.cut(shards.offsets, max_length), boundary_of(shards.info), vocabulary_of(shards.info))

    @cached_property
    def blocks(self) -> list[Block]:
        """The rows of each token shard."""
        shards = self.shards.info.splits[self.shards.split].shards
        documents = np.cumsum([0, *(shard.num_documents for shard in shards)])
        first = np.searchsorted(self.rows.document_R, documents).tolist()
        return [Block(slice(*rows), shard.num_tokens) for rows, shard in zip(pairwise(first), shards, strict=True)]

    def read(self, rows_B: NDArray[np.int64]) -> RowTokens:
        return gather(self.shards, self.rows, rows_B)

    def num_tokens(self, rows_B: NDArray[np.int64]) -> int:
        """Return the number of real tokens in these rows, with boundary tokens and without padding."""
        return int(self.rows.length_R[rows_B].sum()) + NUM_BOUNDARY_TOKENS * len(rows_B)


def boundary_of(info: TokensInfo) -> Boundary:
    ids = info.special_ids
    return Boundary(ids.cls, ids.sep, ids.pad)


def vocabulary_of(info: TokensInfo) -> Vocabulary:
    return Vocabulary(info.vocab_size, info.special_ids.mask, frozenset(info.special_ids.every))
