"""Objectives of a language model: predict hidden tokens, the next token, or which tokens were replaced.

Rows for training and evaluation are cut from token shards. All objectives give the same kind of batch, so that code
which only moves batches need not know the objective. Frequencies of tokens are the knowledge of a model that ignores
context.

Shapes: B rows, L longest row, N content tokens, T targets, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozeline.encoder.architecture import Slots
from clozeline.encoder.families.layout import HEADS, LanguageHead
from clozeline.language.draws import Ids, Stream, fine_uniform, token_hashes
from clozeline.language.masking import Masked, Masker, Vocabulary, evaluation_folds, mean_rate
from clozeline.language.order import Block
from clozeline.language.shards import NUM_BOUNDARY_TOKENS, Rows, RowTokens, TokenShards, gather
from clozeline.params.pretraining import MaskingParams
from clozeline.records.reading.tokens import SpecialIds, TokensInfo

_CHUNK_TOKENS = 1 << 18


@dataclass(frozen=True)
class Split:
    """One split, cut into rows."""

    shards: TokenShards
    rows: Rows
    boundary: SpecialIds
    vocabulary: Vocabulary

    @classmethod
    def open(cls, shards: TokenShards, max_length: int) -> Self:
        return cls(shards, Rows.cut(shards.offsets, max_length), shards.info.special_ids, vocabulary_of(shards.info))

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


def vocabulary_of(info: TokensInfo) -> Vocabulary:
    return Vocabulary(info.vocab_size, info.special_ids.mask, frozenset(info.special_ids.every))


@dataclass(frozen=True)
class TargetBatch:
    """Rows and their targets: positions whose hidden or next token the model predicts."""

    input_ids_BL: Tensor
    attention_mask_BL: Tensor | None  # None if no real token can see padding: attention then takes a faster path
    slot_T: Tensor  # targets: indices into the flattened [B × L], ascending
    labels_T: Tensor
    most_in_row: int | None = None  # upper bound of the targets in a row; None: not counted yet

    @property
    def positions(self) -> Slots:
        num_rows, length = self.input_ids_BL.shape
        return Slots(self.slot_T, num_rows, length, self.most_in_row or self._count())

    def _count(self) -> int:
        if torch.compiler.is_compiling():
            return 0  # Unused while compiling: see `Slots.are_few`.
        return int(torch.bincount(self.slot_T // self.input_ids_BL.shape[1], minlength=1).max())

    @property
    def num_rows(self) -> int:
        return self.input_ids_BL.shape[0]

    @property
    def num_slots(self) -> int:
        """Number of tokens, padding included."""
        return self.input_ids_BL.numel()

    @property
    def num_rows_without_target(self) -> int:
        return self.num_rows - len(torch.unique(self.slot_T // self.input_ids_BL.shape[1]))

    def rows(self, first: int, last: int) -> Self:
        """Return rows `first` … `last - 1` as a batch."""
        of_rows, mask_BL = self.targets_in(first, last), self.attention_mask_BL
        return replace(
            self,
            input_ids_BL=self.input_ids_BL[first:last],
            attention_mask_BL=None if mask_BL is None else mask_BL[first:last],
            slot_T=self.slot_T[of_rows] - first * self.input_ids_BL.shape[1],
            labels_T=self.labels_T[of_rows],
        )

    def silent(self) -> Self:
        """Return the same rows without targets: the loss and every gradient are 0."""
        return replace(self, slot_T=self.slot_T[:0], labels_T=self.labels_T[:0])

    def targets_in(self, first: int, last: int) -> slice:
        """Return the slice of targets that lie in rows `first` … `last - 1`."""
        length = self.input_ids_BL.shape[1]
        return slice(*torch.searchsorted(self.slot_T, torch.tensor([first * length, last * length])).tolist())

    def to(self, device: torch.device) -> Self:
        """Return the batch on `device`. The CPU does not wait for a copy to a GPU."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        elsewhere = {name: tensor for name, tensor in tensors.items() if tensor.device != device}
        sent: dict[str, Any] = {name: _sent(tensor, device) for name, tensor in elsewhere.items()}
        # Counted before the copy, because counting on a GPU would make the CPU wait.
        return replace(self, **sent, most_in_row=self.most_in_row or self._count())

    def as_part_of(self, num_targets: int, num_tokens: int) -> Self:
        """Return the batch as part of a larger one whose summed losses are finally divided by `num_targets`."""
        return self


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to `device`. It goes through pinned memory, because a copy to a GPU from other memory blocks."""
    ready = tensor.pin_memory() if device.type == "cuda" and tensor.device.type == "cpu" else tensor
    return ready.to(device, non_blocking=True)


@dataclass(frozen=True, kw_only=True)
class DetectionBatch(TargetBatch):
    """Rows of replaced-token detection: a generator predicts the targets, and a discriminator judges the text with the
    generator's guesses in it.
    """

    text_ids_BL: Tensor  # the original tokens, nothing hidden
    # Float64 numbers in [0, 1), each a function of its target: they decide which tokens the generator inserts.
    uniform_T: Tensor
    # Targets per real token of the whole step, a scalar. It turns a sum over real tokens that is divided by all targets
    # into a mean over real tokens.
    targets_per_token: Tensor

    def rows(self, first: int, last: int) -> Self:
        uniform_T = self.uniform_T[self.targets_in(first, last)]
        return replace(super().rows(first, last), text_ids_BL=self.text_ids_BL[first:last], uniform_T=uniform_T)

    def silent(self) -> Self:
        no_share = torch.zeros_like(self.targets_per_token)
        return replace(super().silent(), uniform_T=self.uniform_T[:0], targets_per_token=no_share)

    def as_part_of(self, num_targets: int, num_tokens: int) -> Self:
        return replace(self, targets_per_token=torch.tensor(num_targets / num_tokens))

    def with_guesses(self, guess_T: Tensor) -> tuple[Tensor, Tensor]:
        """Return `ids_BL`, the text with a guess at each target, and `is_replaced_BL`. A right guess replaces nothing
        (Clark et al. 2020, section 2).
        """
        text_ids_BL = self.text_ids_BL
        ids_BL = text_ids_BL.flatten().scatter(0, self.slot_T, guess_T).view_as(text_ids_BL)
        return ids_BL, ids_BL != text_ids_BL


def hidden_batch(split: Split, tokens: RowTokens, masked: Masked) -> TargetBatch:
    """Return the rows as `masked` shows them, with its targets."""
    is_target_N = masked.is_target_N
    return TargetBatch(
        input_ids_BL=torch.from_numpy(tokens.padded(masked.input_ids_N, split.boundary)),
        attention_mask_BL=_attention_mask(tokens),
        slot_T=torch.from_numpy(tokens.slot_N[is_target_N]),
        labels_T=torch.from_numpy(tokens.input_ids_N[is_target_N]),
    )


def next_token_batch(split: Split, tokens: RowTokens, asked_N: NDArray[np.bool_], with_end: bool) -> TargetBatch:
    """Return the unchanged rows; targets are the tokens of `asked_N`, and [SEP] where a document ends.

    A row whose document continues in another row ends in [SEP] too, but that [SEP] is not a target. Padding follows
    every target, where causal attention cannot see it, so no mask is needed.
    """
    slot_T = tokens.slot_N[asked_N] - 1
    labels_T = tokens.input_ids_N[asked_N]
    if with_end:
        end_B = np.flatnonzero(tokens.ends_document_B)
        slot_T = np.append(slot_T, end_B * tokens.longest + tokens.length_B[end_B] - 2)
        labels_T = np.append(labels_T, np.full(len(end_B), split.boundary.sep))
        rising_T = np.argsort(slot_T, kind="stable")
        slot_T, labels_T = slot_T[rising_T], labels_T[rising_T]
    return TargetBatch(
        input_ids_BL=torch.from_numpy(tokens.padded(tokens.input_ids_N, split.boundary)),
        attention_mask_BL=None,
        slot_T=torch.from_numpy(slot_T),
        labels_T=torch.from_numpy(labels_T),
    )


def _attention_mask(tokens: RowTokens) -> Tensor | None:
    if (tokens.length_B == tokens.longest).all():
        return None
    return torch.from_numpy((np.arange(tokens.longest) < tokens.length_B[:, None]).astype(np.int64))


def detection_batch(split: Split, tokens: RowTokens, masked: Masked, seed: int, epoch: int) -> DetectionBatch:
    """Return the rows with the targets of `masked`; random numbers are a function of (seed, epoch, token)."""
    hidden = hidden_batch(split, tokens, masked)
    hash_N = token_hashes(seed, epoch, Stream.REPLACEMENT, tokens.document_N, tokens.position_N)
    return DetectionBatch(
        **vars(hidden),
        text_ids_BL=torch.from_numpy(tokens.padded(tokens.input_ids_N, split.boundary)),
        uniform_T=torch.from_numpy(fine_uniform(hash_N[masked.is_target_N])),
        targets_per_token=torch.tensor(len(hidden.labels_T) / int(tokens.length_B.sum())),
    )


def in_fold(split: Split, tokens: RowTokens, seed: int, fold: int, num_folds: int) -> NDArray[np.bool_]:
    """Return which of `tokens` are targets of the evaluation batch for this fold."""
    fold_N: Ids = evaluation_folds(seed, num_folds, tokens.document_N, tokens.position_N)
    in_fold_N: NDArray[np.bool_] = (fold_N == fold) & ~split.vocabulary.is_special_V[tokens.input_ids_N]
    return in_fold_N


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A way to train a language model."""

    title: str
    # Head that the model predicts with. The saved model, its evaluation and its export depend on the head alone.
    head: LanguageHead
    pipeline_tag: str  # the hub's name for what the model does
    # Whether `masking` decides what is hidden. If not, every ordinary token is a target.
    masks: bool = True

    def target_share(self, masking: MaskingParams) -> float:
        """Return targets / tokens, 0-1, as the mean over the budget."""
        return mean_rate(masking) if self.masks else 1.0

    def training_batch(
        self, split: Split, masker: Masker, tokens: RowTokens, epoch: int, progress: float
    ) -> TargetBatch:
        """Return the batch of the rows of a step. `progress`: through the budget, 0-1."""
        if not self.masks:
            return next_token_batch(split, tokens, ~masker.is_special_V[tokens.input_ids_N], with_end=True)
        masked = masker.mask(epoch, tokens.input_ids_N, tokens.document_N, tokens.position_N, progress, tokens.row_N)
        return self._hidden(split, tokens, masked, masker.seed, epoch)

    def evaluation_batch(self, split: Split, tokens: RowTokens, seed: int, fold: int, num_folds: int) -> TargetBatch:
        """Return the batch of one fold. `seed` assigns each ordinary token to one of `num_folds` folds."""
        is_target_N = in_fold(split, tokens, seed, fold, num_folds)
        if not self.masks:
            return next_token_batch(split, tokens, is_target_N, with_end=False)
        hidden_N = np.where(is_target_N, split.vocabulary.mask_id, tokens.input_ids_N)
        return self._hidden(split, tokens, Masked(hidden_N, is_target_N), seed, epoch=0)

    def _hidden(self, split: Split, tokens: RowTokens, masked: Masked, seed: int, epoch: int) -> TargetBatch:
        if not HEADS[self.head].predicts_tokens:
            return detection_batch(split, tokens, masked, seed, epoch)
        return hidden_batch(split, tokens, masked)


# The values of `pretrain.objective`. A head has the objective of its name, which judges every model with this head.
OBJECTIVES: Mapping[str, Objective] = {
    "mlm": Objective(title="masked language modelling", head="mlm", pipeline_tag="fill-mask"),
    "clm": Objective(title="causal language modelling", head="clm", pipeline_tag="text-generation", masks=False),
    "rtd": Objective(title="replaced-token detection", head="rtd", pipeline_tag="feature-extraction"),
}


def token_counts(shards: TokenShards, vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Return `counts_V`, in memory that does not grow with the split."""
    counts_V = np.zeros(vocabulary.size, dtype=np.int64)
    for start in range(0, shards.num_tokens, _CHUNK_TOKENS):
        stop = min(start + _CHUNK_TOKENS, shards.num_tokens)
        counts_V += np.bincount(shards.tokens(start, stop), minlength=vocabulary.size)
    return counts_V


def unigram_entropy(shards: TokenShards, vocabulary: Vocabulary) -> float:
    """Return the entropy of the ordinary tokens' own frequencies, in nats per token."""
    counts = token_counts(shards, vocabulary)[vocabulary.ordinary_ids]
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
