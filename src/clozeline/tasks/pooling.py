"""Pooling of token vectors into one vector for a text.

Shapes: B texts, L tokens, H hidden.
"""

from torch import Tensor
from torch.nn import functional

from clozeline.encoder.heads import POOLINGS, mean_over_tokens


def mean_of_tokens(hidden_BLH: Tensor, attention_mask_BL: Tensor) -> Tensor:
    """Return the mean over unpadded tokens, normalized to length 1 (MEAN pooling, Reimers & Gurevych 2019, section 3):
    [B, H].
    """
    return functional.normalize(mean_over_tokens(hidden_BLH, attention_mask_BL), dim=-1)


def pooled(way: str, hidden_BLH: Tensor, attention_mask_BL: Tensor) -> Tensor:
    """Return the vectors of texts pooled in a way of `POOLINGS`, normalized to length 1: [B, H]."""
    return functional.normalize(POOLINGS[way](hidden_BLH, attention_mask_BL), dim=-1)
