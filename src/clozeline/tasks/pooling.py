"""From a vector for each token to one for the text.

Shapes: B texts, L tokens, H hidden.
"""

from torch import Tensor
from torch.nn import functional


def mean_of_tokens(hidden_BLH: Tensor, attention_mask_BL: Tensor) -> Tensor:
    """Mean over real tokens, divided by its length (Reimers & Gurevych 2019, section 3: MEAN pooling): [B, H]."""
    weight_BL1 = attention_mask_BL.unsqueeze(-1).to(hidden_BLH.dtype)
    mean_BH = (hidden_BLH * weight_BL1).sum(dim=1) / weight_BL1.sum(dim=1)
    return functional.normalize(mean_BH, dim=-1)
