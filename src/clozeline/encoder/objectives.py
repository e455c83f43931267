"""What a language model is asked: the tokens that were hidden, at each position the next one, or which were replaced.

All give the same kind of batch, so nothing that only moves batches knows which of them it is.

Shapes: B rows, L longest row, N content tokens, T targets.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozeline.encoder.batches import Split
from clozeline.encoder.families import Objective
from clozeline.encoder.positions import Slots
from clozeline.tokens.draws import Stream, fine_uniform, token_hashes
from clozeline.tokens.masking import Ids, Masked, Masker, evaluation_folds
from clozeline.tokens.rows import RowTokens


@dataclass(frozen=True)
class TargetBatch:
    """Rows, and what is to be named at some of their positions: what was hidden there, or what comes next."""

    input_ids_BL: Tensor
    attention_mask_BL: Tensor | None
    """None where no position that counts can see padding: attention then takes a faster path."""
    slot_T: Tensor
    """Targets: indices into the flattened [B × L], rising."""
    labels_T: Tensor
    most_in_row: int | None = None
    """At least as many targets as any row has; None: not counted yet."""

    @property
    def positions(self) -> Slots:
        num_rows, length = self.input_ids_BL.shape
        return Slots(self.slot_T, num_rows, length, self.most_in_row or self._count())

    def _count(self) -> int:
        if torch.compiler.is_compiling():
            return 0  # Nobody asks: see `Slots.are_few`.
        return int(torch.bincount(self.slot_T // self.input_ids_BL.shape[1], minlength=1).max())

    @property
    def num_rows(self) -> int:
        return self.input_ids_BL.shape[0]

    @property
    def num_slots(self) -> int:
        """Tokens, padding among them."""
        return self.input_ids_BL.numel()

    @property
    def num_rows_without_target(self) -> int:
        return self.num_rows - len(torch.unique(self.slot_T // self.input_ids_BL.shape[1]))

    def rows(self, first: int, last: int) -> "TargetBatch":
        """Rows `first` … `last - 1` alone."""
        of_rows, mask_BL = self.targets_in(first, last), self.attention_mask_BL
        return TargetBatch(
            input_ids_BL=self.input_ids_BL[first:last],
            attention_mask_BL=None if mask_BL is None else mask_BL[first:last],
            slot_T=self.slot_T[of_rows] - first * self.input_ids_BL.shape[1],
            labels_T=self.labels_T[of_rows],
            most_in_row=self.most_in_row,
        )

    def silent(self) -> Self:
        """The same rows, asked for nothing: their loss is 0, and so is every gradient."""
        return replace(self, slot_T=self.slot_T[:0], labels_T=self.labels_T[:0])

    def targets_in(self, first: int, last: int) -> slice:
        """Those of rows `first` … `last - 1`."""
        length = self.input_ids_BL.shape[1]
        return slice(*torch.searchsorted(self.slot_T, torch.tensor([first * length, last * length])).tolist())

    def to(self, device: torch.device) -> Self:
        """The same on `device`; on the way to a GPU, the processor goes on."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        elsewhere = {name: tensor for name, tensor in tensors.items() if tensor.device != device}
        sent: dict[str, Any] = {name: _sent(tensor, device) for name, tensor in elsewhere.items()}
        # Counted before it is sent: a GPU would have to be waited for.
        return replace(self, **sent, most_in_row=self.most_in_row or self._count())

    def as_part_of(self, num_targets: int, num_tokens: int) -> Self:
        """The same as a part of so much, where its losses are divided by `num_targets` in the end."""
        return self


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """From memory that may be paged out, a copy to a GPU is waited for."""
    ready = tensor.pin_memory() if device.type == "cuda" and tensor.device.type == "cpu" else tensor
    return ready.to(device, non_blocking=True)


@dataclass(frozen=True, kw_only=True)
class DetectionBatch(TargetBatch):
    """Rows whose targets a generator is to name, and whose text, with its guesses in it, a discriminator judges."""

    text_ids_BL: Tensor
    """What was written, nothing hidden."""
    uniform_T: Tensor
    """In [0, 1), float64, a function of who the target is: decides which token the generator puts there."""
    targets_per_token: Tensor
    """Of the whole step, a scalar: what is summed over real tokens and divided by all targets becomes, times this, a
    mean over real tokens."""

    def rows(self, first: int, last: int) -> "DetectionBatch":
        part = super().rows(first, last)
        return DetectionBatch(
            **vars(part),
            text_ids_BL=self.text_ids_BL[first:last],
            uniform_T=self.uniform_T[self.targets_in(first, last)],
            targets_per_token=self.targets_per_token,
        )

    def silent(self) -> Self:
        no_share = torch.zeros_like(self.targets_per_token)
        return replace(super().silent(), uniform_T=self.uniform_T[:0], targets_per_token=no_share)

    def as_part_of(self, num_targets: int, num_tokens: int) -> Self:
        return replace(self, targets_per_token=torch.tensor(num_targets / num_tokens))

    def with_guesses(self, guess_T: Tensor) -> tuple[Tensor, Tensor]:
        """`ids_BL`, the text with a guess at each target, and `is_replaced_BL`: a guess that is right replaces nothing
        (Clark et al. 2020, section 2)."""
        text_ids_BL = self.text_ids_BL
        ids_BL = text_ids_BL.flatten().scatter(0, self.slot_T, guess_T).view_as(text_ids_BL)
        return ids_BL, ids_BL != text_ids_BL


def hidden_batch(split: Split, tokens: RowTokens, masked: Masked) -> TargetBatch:
    """The rows as `masked` shows them; its targets are asked for."""
    is_target_N = masked.is_target_N
    return TargetBatch(
        input_ids_BL=torch.from_numpy(tokens.padded(masked.input_ids_N, split.boundary)),
        attention_mask_BL=_attention_mask(tokens),
        slot_T=torch.from_numpy(tokens.slot_N[is_target_N]),
        labels_T=torch.from_numpy(tokens.input_ids_N[is_target_N]),
    )


def next_token_batch(split: Split, tokens: RowTokens, asked_N: NDArray[np.bool_], with_end: bool) -> TargetBatch:
    """The rows as they are; asked for are the tokens of `asked_N`, and [SEP] where a document ends.

    A row that is only cut from its document ends in [SEP] too, but is not said to be followed by it. Padding stands
    behind every target, where causal attention does not look: no mask is needed.
    """
    slot_T = tokens.slot_N[asked_N] - 1
    labels_T = tokens.input_ids_N[asked_N]
    if with_end:
        end_B = np.flatnonzero(tokens.ends_document_B)
        slot_T = np.append(slot_T, end_B * tokens.longest + tokens.length_B[end_B] - 2)
        labels_T = np.append(labels_T, np.full(len(end_B), split.boundary.sep_id))
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


def _masked_for_training(split: Split, masker: Masker, tokens: RowTokens, epoch: int, progress: float) -> TargetBatch:
    masked = masker.mask(epoch, tokens.input_ids_N, tokens.document_N, tokens.position_N, progress)
    return hidden_batch(split, tokens, masked)


def _next_for_training(split: Split, masker: Masker, tokens: RowTokens, epoch: int, progress: float) -> TargetBatch:
    return next_token_batch(split, tokens, ~masker.is_special_V[tokens.input_ids_N], with_end=True)


def _replaced_for_training(split: Split, masker: Masker, tokens: RowTokens, epoch: int, progress: float) -> TargetBatch:
    masked = masker.mask(epoch, tokens.input_ids_N, tokens.document_N, tokens.position_N, progress)
    return detection_batch(split, tokens, masked, masker.seed, epoch)


def detection_batch(split: Split, tokens: RowTokens, masked: Masked, seed: int, epoch: int) -> DetectionBatch:
    """What `masked` hides is asked for, and drawn by numbers that are a function of (seed, epoch, token)."""
    hidden = hidden_batch(split, tokens, masked)
    hash_N = token_hashes(seed, epoch, Stream.REPLACEMENT, tokens.document_N, tokens.position_N)
    return DetectionBatch(
        **vars(hidden),
        text_ids_BL=torch.from_numpy(tokens.padded(tokens.input_ids_N, split.boundary)),
        uniform_T=torch.from_numpy(fine_uniform(hash_N[masked.is_target_N])),
        targets_per_token=torch.tensor(len(hidden.labels_T) / int(tokens.length_B.sum())),
    )


def in_fold(split: Split, tokens: RowTokens, seed: int, fold: int, num_folds: int) -> NDArray[np.bool_]:
    """Which of `tokens` the judging batch of this fold asks for, in the order of its targets."""
    fold_N: Ids = evaluation_folds(seed, num_folds, tokens.document_N, tokens.position_N)
    in_fold_N: NDArray[np.bool_] = (fold_N == fold) & ~split.vocabulary.is_special_V[tokens.input_ids_N]
    return in_fold_N


def _fold_hidden(split: Split, tokens: RowTokens, seed: int, fold: int, num_folds: int) -> Masked:
    is_target_N = in_fold(split, tokens, seed, fold, num_folds)
    return Masked(np.where(is_target_N, split.vocabulary.mask_id, tokens.input_ids_N), is_target_N)


def _masked_for_judging(split: Split, tokens: RowTokens, seed: int, fold: int, num_folds: int) -> TargetBatch:
    return hidden_batch(split, tokens, _fold_hidden(split, tokens, seed, fold, num_folds))


def _replaced_for_judging(split: Split, tokens: RowTokens, seed: int, fold: int, num_folds: int) -> TargetBatch:
    return detection_batch(split, tokens, _fold_hidden(split, tokens, seed, fold, num_folds), seed, epoch=0)


def _next_for_judging(split: Split, tokens: RowTokens, seed: int, fold: int, num_folds: int) -> TargetBatch:
    return next_token_batch(split, tokens, in_fold(split, tokens, seed, fold, num_folds), with_end=False)


@dataclass(frozen=True)
class Batches:
    """How an objective makes its batches."""

    training: Callable[[Split, Masker, RowTokens, int, float], TargetBatch]
    """Of the rows of a step, in an epoch, at a progress (0-1) through the budget."""
    judging: Callable[[Split, RowTokens, int, int, int], TargetBatch]
    """Of fold `fold` of `num_folds`, dealt out by `seed`: over all folds every ordinary token is a target once."""


OBJECTIVES: Mapping[Objective, Batches] = MappingProxyType(
    {
        "mlm": Batches(_masked_for_training, _masked_for_judging),
        "clm": Batches(_next_for_training, _next_for_judging),
        "rtd": Batches(_replaced_for_training, _replaced_for_judging),
    }
)
