"""Batches of token rows for an encoder, with or without targets.

Shapes: B rows, L longest row; `targets_B` has B rows and further axes that depend on the task.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class EncodedBatch:
    """Texts or pairs of texts, as rows padded to one length."""

    input_ids_BL: Tensor
    attention_mask_BL: Tensor | None
    """None if no row is padded, so that attention takes a faster path."""
    token_type_ids_BL: Tensor | None = None
    """0 for the first text of a pair, 1 for the second; None for families without token types."""

    @property
    def num_rows(self) -> int:
        return self.input_ids_BL.shape[0]

    @property
    def num_slots(self) -> int:
        """Number of tokens, including padding."""
        return self.input_ids_BL.numel()

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Keyword arguments of a transformers model."""
        named = {
            "input_ids": self.input_ids_BL,
            "attention_mask": self.attention_mask_BL,
            "token_type_ids": self.token_type_ids_BL,
        }
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def rows(self, first: int, last: int) -> Self:
        """Return rows `first` … `last - 1`."""
        return self._each(lambda tensor: tensor[first:last])

    def to(self, device: torch.device) -> Self:
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        mask_BL, types_BL = self.attention_mask_BL, self.token_type_ids_BL
        return type(self)(
            change(self.input_ids_BL),
            None if mask_BL is None else change(mask_BL),
            None if types_BL is None else change(types_BL),
        )


@dataclass(frozen=True)
class TargetedBatch:
    """Rows with their targets: a class, a class for each token, a pair of positions, …"""

    encoded: EncodedBatch
    targets_B: Tensor

    @property
    def num_rows(self) -> int:
        return self.encoded.num_rows

    @property
    def num_slots(self) -> int:
        return self.encoded.num_slots

    def rows(self, first: int, last: int) -> Self:
        return type(self)(self.encoded.rows(first, last), self.targets_B[first:last])

    def to(self, device: torch.device) -> Self:
        return type(self)(self.encoded.to(device), self.targets_B.to(device))
