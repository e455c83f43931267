"""Named sizes of an encoder, one row each."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from clozeline.params import ModelParams


@dataclass(frozen=True)
class Shape:
    """Depth and widths of an encoder."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int

    def __str__(self) -> str:
        return f"{self.num_hidden_layers} layers × {self.hidden_size}"


@dataclass(frozen=True)
class Size:
    """A named shape. A gated MLP has three matrices and a plain one two, so each has its own width."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    plain_intermediate_size: int
    """4 × hidden (Vaswani et al. 2017), as in BERT and the families after it."""
    gated_intermediate_size: int
    """Widths of ModernBERT (Warner et al. 2024) and, for small sizes, of Ettin (Weller et al. 2025). The width of mini
    is the best for five minutes of training (docs/default-recipe.md).
    """


SIZES: Mapping[str, Size] = MappingProxyType(
    {
        "mini": Size(2, 96, 2, 384, 192),
        "tiny": Size(4, 256, 4, 1024, 384),
        "small": Size(6, 512, 8, 2048, 768),
        "base": Size(12, 768, 12, 3072, 1152),
        "large": Size(24, 1024, 16, 4096, 2624),
    }
)


def shape_of(params: ModelParams, *, gated: bool, published: Mapping[str, Shape] = MappingProxyType({})) -> Shape:
    """Return the shape that `params.size` names for this kind of MLP, or the explicit numbers in `params`.

    `published`: the family's own sizes, which take precedence.
    """
    if params.size is not None and params.size in published:
        return published[params.size]
    if params.size is not None:
        size = SIZES[params.size]
        width = size.gated_intermediate_size if gated else size.plain_intermediate_size
        return Shape(size.num_hidden_layers, size.hidden_size, size.num_attention_heads, width)
    numbers = (params.num_hidden_layers, params.hidden_size, params.num_attention_heads, params.intermediate_size)
    return Shape(*(number for number in numbers if number is not None))
