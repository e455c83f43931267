"""From token shards to the tensors a masked language model is trained and judged on."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from clozeline.model.masked_lm import MaskedBatch
from clozeline.tokens.masking import Masked, Masker, Vocabulary, evaluation_folds
from clozeline.tokens.rows import Boundary, Rows, RowTokens, gather
from clozeline.tokens.shards import TokenShards, TokensInfo


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

    def read(self, rows_B: NDArray[np.int64]) -> RowTokens:
        return gather(self.shards, self.rows, rows_B)

    def training_batch(self, masker: Masker, epoch: int, rows_B: NDArray[np.int64]) -> MaskedBatch:
        tokens = self.read(rows_B)
        masked = masker.mask(epoch, tokens.input_ids_N, tokens.document_N, tokens.position_N)
        return as_tensors(tokens, masked, self.boundary)

    def fold_batch(self, tokens: RowTokens, seed: int, fold: int, num_folds: int) -> MaskedBatch:
        """The tokens of fold `fold` replaced by [MASK], all others shown; and which document each target is from."""
        fold_N = evaluation_folds(seed, num_folds, tokens.document_N, tokens.position_N)
        is_target_N = (fold_N == fold) & ~self.vocabulary.is_special_V[tokens.input_ids_N]
        shown_N = np.where(is_target_N, self.vocabulary.mask_id, tokens.input_ids_N)
        return as_tensors(tokens, Masked(shown_N, is_target_N), self.boundary)


def boundary_of(info: TokensInfo) -> Boundary:
    ids = info.special_ids
    return Boundary(ids.cls, ids.sep, ids.pad)


def vocabulary_of(info: TokensInfo) -> Vocabulary:
    return Vocabulary(info.vocab_size, info.special_ids.mask, frozenset(info.special_ids.every))


def as_tensors(tokens: RowTokens, masked: Masked, boundary: Boundary) -> MaskedBatch:
    input_ids_BL = tokens.padded(masked.input_ids_N, boundary)
    longest = input_ids_BL.shape[1]
    is_padded = bool((tokens.length_B < longest).any())
    mask_BL = (np.arange(longest) < tokens.length_B[:, None]).astype(np.int64)
    return MaskedBatch(
        input_ids_BL=torch.from_numpy(input_ids_BL),
        attention_mask_BL=torch.from_numpy(mask_BL) if is_padded else None,
        slot_N=torch.from_numpy(tokens.slot_N[masked.is_target_N]),
        labels_N=torch.from_numpy(tokens.input_ids_N[masked.is_target_N]),
    )
