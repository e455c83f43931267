"""The sizes of an encoder: a row each."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from clozeline.params import ModelParams


@dataclass(frozen=True)
class Size:
    """Depth and widths of an encoder."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    """Of an MLP that is gated has two matrices of it, one that is not has one."""


SIZES: Mapping[str, Size] = MappingProxyType(
    {
        "mini": Size(2, 128, 2, 256),
        "tiny": Size(4, 256, 4, 768),
        "small": Size(6, 512, 8, 1536),
        "base": Size(12, 768, 12, 2304),
        "large": Size(24, 1024, 16, 3072),
    }
)


def size_of(params: ModelParams) -> Size:
    """The row that `params.size` names, or the numbers that stand in its place."""
    if params.size is not None:
        return SIZES[params.size]
    numbers = (params.num_hidden_layers, params.hidden_size, params.num_attention_heads, params.intermediate_size)
    return Size(*(number for number in numbers if number is not None))
