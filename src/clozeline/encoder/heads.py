"""The head of an encoder: from hidden states to logits.

Shapes: B rows, L tokens, P any axes of positions, H hidden, C outputs.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor, nn

from clozeline.encoder.activations import activation_of
from clozeline.encoder.architecture import HeadShape, norm_of
from clozeline.encoder.dropout import DropoutOf16Bits


class Head(nn.Module):
    """Head with the parts that `HeadShape` names, in order: dropout, dense, activation, norm, dropout, output."""

    def __init__(self, shape: HeadShape, hidden_size: int) -> None:
        super().__init__()
        self.shape = shape
        width = shape.dense_size or hidden_size
        self.dropout_before = DropoutOf16Bits(shape.dropout_before)
        self.dense = None if shape.dense_size is None else nn.Linear(hidden_size, width, bias=shape.has_dense_bias)
        self.activation = None if shape.activation is None else activation_of(shape.activation)
        self.norm = (
            None
            if shape.norm_epsilon is None
            else norm_of("layer", width, shape.norm_epsilon, has_bias=shape.has_norm_bias)
        )
        self.dropout_after = DropoutOf16Bits(shape.dropout_after)
        self.output = nn.Linear(width, shape.num_outputs, bias=shape.has_output_bias) if shape.num_outputs else None

    def forward(self, hidden_PH: Tensor) -> Tensor:
        """Return `logits_PC`."""
        hidden_PX = self.dropout_before(hidden_PH)
        for part in (self.dense, self.activation, self.norm, self.dropout_after, self.output):
            if part is not None:
                hidden_PX = part(hidden_PX)
        logits_PC: Tensor = hidden_PX
        return logits_PC


def mean_over_tokens(hidden_BLH: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
    """Return `mean_BH` over real tokens; without a mask, over all tokens."""
    if attention_mask_BL is None:
        return hidden_BLH.mean(dim=1)
    weight_BL1 = attention_mask_BL.unsqueeze(-1).to(hidden_BLH.dtype)
    return (hidden_BLH * weight_BL1).sum(dim=1) / weight_BL1.sum(dim=1)


def first_token(hidden_BLH: Tensor, attention_mask_BL: Tensor) -> Tensor:
    """Return the vector of each text's first token, `first_BH`: that of `[CLS]` or `<s>`."""
    return hidden_BLH[:, 0]


def largest_over_tokens(hidden_BLH: Tensor, attention_mask_BL: Tensor) -> Tensor:
    """Return the largest value of each feature over real tokens, `largest_BH`."""
    is_padding_BL1 = attention_mask_BL.unsqueeze(-1) == 0
    return hidden_BLH.masked_fill(is_padding_BL1, float("-inf")).amax(dim=1)


POOLINGS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"mean": mean_over_tokens, "cls": first_token, "max": largest_over_tokens}
)
"""Ways to turn the vectors of tokens into one vector for a text, by the names of sentence-transformers."""
