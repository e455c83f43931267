"""Architecture of an encoder and its head: every option of our layers (layers.py), named sizes, activations, positions.

A family's row (families/) translates its published configuration to these options and refuses anything else.
Activations have the names that configurations use. Those of the families' published sizes are torch's own: importing
transformers' table costs every stage a second.

If only some positions are requested, the last layer still computes keys and values at all of them; its queries,
attention output, MLP and norms, and the head, run at the requested positions only. The results are equal up to
rounding, at a fraction of the cost.

Shapes: B rows, L tokens, X any axis; Q positions of each row; P any axes of positions: T of all rows, or [B, Q].
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal, Self, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from clozeline.params.model import ModelParams

Pooling = Literal["first", "last", "mean"]

OWN_ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_pytorch_tanh": partial(nn.GELU, approximate="tanh"),
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "swish": nn.SiLU,
    "tanh": nn.Tanh,
}

_POSITIONS_AFTER_PAD = frozenset({"camembert", "longformer", "mpnet", "roberta", "xlm-roberta"})

# Share of all positions above which gathering them saves nothing.
_MOST_GATHERED = 0.5


@dataclass(frozen=True)
class Dropouts:
    """Dropout rates, used in training only."""

    embedding: float = 0.0
    attention: float = 0.0  # rate on the attention weights
    attention_output: float = 0.0
    mlp_inner: float = 0.0  # rate between the two matrices of an MLP
    mlp_output: float = 0.0


@dataclass(frozen=True)
class Initialization:
    """Distribution of initial weights. Biases start at 0, norms at 1."""

    std: float
    # Standard deviation of the matrices that write to the residual stream: the outputs of attention and MLP.
    out_std: float
    cutoff: float | None = None  # truncation in standard deviations; None: no truncation
    zeroes_padding: bool = True  # whether the embedding of the padding token starts at 0


@dataclass(frozen=True)
class LayerKind:
    """Attention pattern of a layer."""

    reach: int | None = None  # positions that a query sees to each side; None: all
    # Base of the rotary position embedding (Su et al. 2021); None: no rotary positions.
    rotary_theta: float | None = None


@dataclass(frozen=True)
class Architecture:
    """An encoder without its head."""

    vocab_size: int
    hidden_size: int
    num_heads: int
    intermediate_size: int  # inner width of an MLP; a gated MLP has the same width again for its gate
    layers: tuple[LayerKind, ...]  # kind of each layer that a token passes, in order
    pad_id: int | None
    norm_epsilon: float
    activation: str
    initialization: Initialization
    dropouts: Dropouts = Dropouts()
    # Width of factorized embeddings, which a matrix projects to `hidden_size` (Lan et al. 2019, section 3.1); None:
    # embeddings are as wide as the layers.
    embedding_size: int | None = None
    num_positions: int = 0  # rows of the table of learned positions; 0: no table
    counts_from_pad: bool = False  # whether positions count real tokens only, starting at `pad_id` + 1 (RoBERTa)
    num_types: int = 0  # number of token types (segments)
    # Whether norms precede attention and MLP and follow the last layer (pre-norm); otherwise they follow each residual
    # sum (Xiong et al. 2020).
    is_pre_norm: bool = False
    has_norm_bias: bool = True
    has_attention_bias: bool = True
    has_mlp_bias: bool = True
    is_gated: bool = False  # whether the MLP multiplies its inner values with a gate (Shazeer 2020)
    is_fused: bool = False  # whether one matrix computes queries, keys and values
    is_causal: bool = False  # whether a position sees only itself and earlier positions
    # Index of the weights that each layer uses; None: each layer has its own. ALBERT's layers share weights.
    weights_of_layer: tuple[int, ...] | None = None

    @property
    def table_width(self) -> int:
        return self.embedding_size or self.hidden_size

    @property
    def uses(self) -> tuple[int, ...]:
        return self.weights_of_layer or tuple(range(len(self.layers)))


@dataclass(frozen=True)
class HeadShape:
    """Parts of a head, in order: dropout, dense, activation, norm, dropout, output. Each part is optional."""

    num_outputs: int  # width of the output; 0: no output layer, the head ends before it
    dense_size: int | None = None  # width of the dense layer; None: no dense layer
    has_dense_bias: bool = True
    activation: str | None = None
    norm_epsilon: float | None = None
    has_norm_bias: bool = True
    has_output_bias: bool = True
    dropout_before: float = 0.0
    dropout_after: float = 0.0
    # Pooling of a text: its first token, its last, or the mean over all; None: one output per token.
    pooling: Pooling | None = None
    is_tied: bool = False  # whether the output matrix is the token table
    dense_std: float = 0.02
    output_std: float = 0.02
    cutoff: float | None = None


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
    # 4 × hidden (Vaswani et al. 2017), as in BERT and the families after it.
    plain_intermediate_size: int
    # Widths of ModernBERT (Warner et al. 2024) and, for small sizes, of Ettin (Weller et al. 2025). The width of mini
    # is the best for five minutes of training (docs/default-recipe.md).
    gated_intermediate_size: int


SIZES: Mapping[str, Size] = {
    "mini": Size(2, 96, 2, 384, 192),
    "tiny": Size(4, 256, 4, 1024, 384),
    "small": Size(6, 512, 8, 2048, 768),
    "base": Size(12, 768, 12, 3072, 1152),
    "large": Size(24, 1024, 16, 4096, 2624),
}


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


def activation_of(name: str) -> nn.Module:
    """Return a new module.

    Raises:
        KeyError: `name` is neither in OWN_ACTIVATIONS nor in transformers' table.
    """
    if name in OWN_ACTIVATIONS:
        return OWN_ACTIVATIONS[name]()
    from transformers.activations import ACT2FN

    module: nn.Module = ACT2FN[name]
    return module


def first_position(config: PretrainedConfig) -> int:
    """Return the first row of the position table in use: `pad_token_id` + 1 for RoBERTa's relatives, else 0."""
    return int(config.pad_token_id) + 1 if config.model_type in _POSITIONS_AFTER_PAD else 0


def longest_row_of(config: PretrainedConfig) -> int:
    """Return the longest row that the positions allow, in tokens."""
    return int(config.max_position_embeddings) - first_position(config)


class Positions(ABC):
    """The requested positions of each row, in order."""

    @abstractmethod
    def queries_BQ(self) -> Tensor:
        """Position of each query in its row; [1, Q] if the same in all rows."""

    @property
    def are_few(self) -> bool:
        """Whether computing the last layer for these positions alone pays off."""
        return True

    @abstractmethod
    def of(self, values_BLX: Tensor) -> Tensor:
        """Return `values_PX` at these positions."""

    def as_queries(self, values_PX: Tensor) -> Tensor:
        """Return `values_BQX`: attention needs the same number of queries in each row."""
        return values_PX

    def from_queries(self, values_BQX: Tensor) -> Tensor:
        """Return `values_PX`: the inverse of `as_queries`."""
        return values_BQX


class FirstPosition(Positions):
    """The first token of each row, usually [CLS]; P is [B, 1]."""

    def queries_BQ(self) -> Tensor:
        return torch.zeros(1, 1, dtype=torch.long)

    def of(self, values_BLX: Tensor) -> Tensor:
        return values_BLX[:, :1]


@dataclass(frozen=True)
class ChosenPositions(Positions):
    """The same number of positions in each row, that of the row with the most; P is [B, Q]."""

    position_BQ: Tensor
    length: int

    @classmethod
    def where(cls, is_asked_BL: Tensor) -> Self:
        """Choose the requested positions in order, and the first position of each row, so that there is always one.

        Rows with fewer than the most are filled up with other positions.
        """
        length = is_asked_BL.shape[1]
        position_L = torch.arange(length, device=is_asked_BL.device)
        asked_BL = (is_asked_BL | (position_L == 0)).long()
        num_asked = asked_BL.sum(dim=1).max()
        # Requested positions have distinct keys, so that their order does not depend on how ties are broken.
        key_BL = asked_BL * (length - position_L)
        # The number stays a tensor, so that a traced graph computes it.
        return cls(key_BL.topk(cast(int, num_asked), dim=1).indices, length)

    def queries_BQ(self) -> Tensor:
        return self.position_BQ

    def of(self, values_BLX: Tensor) -> Tensor:
        first_B1 = self.length * torch.arange(values_BLX.shape[0], device=values_BLX.device).unsqueeze(1)
        return values_BLX.flatten(0, 1)[self.position_BQ + first_B1]


@dataclass(frozen=True)
class Slots(Positions):
    """Any number of positions in each row; P is T."""

    slot_T: Tensor  # indices into the flattened [B × L], ascending
    num_rows: int
    length: int
    most_in_row: int  # upper bound of the positions in a row

    @property
    def are_few(self) -> bool:
        if torch.compiler.is_compiling():  # One compiled graph serves any number of targets.
            return False
        return 0 < len(self.slot_T) < _MOST_GATHERED * self.num_rows * self.length

    @property
    def _row_and_place_T(self) -> tuple[Tensor, Tensor]:
        """Row of each position, and its rank among the positions of that row."""
        row_T = self.slot_T // self.length
        starts_B = self.length * torch.arange(self.num_rows, device=self.slot_T.device)
        first_B = torch.searchsorted(self.slot_T, starts_B)
        return row_T, torch.arange(len(self.slot_T), device=self.slot_T.device) - first_B[row_T]

    def queries_BQ(self) -> Tensor:
        return self.as_queries(self.slot_T % self.length)

    def of(self, values_BLX: Tensor) -> Tensor:
        return values_BLX.flatten(0, 1)[self.slot_T]

    def as_queries(self, values_PX: Tensor) -> Tensor:
        """Return `values_BQX`, zero where a row has fewer than Q positions."""
        values_BQX = values_PX.new_zeros(self.num_rows, self.most_in_row, *values_PX.shape[1:])
        return values_BQX.index_put(self._row_and_place_T, values_PX)

    def from_queries(self, values_BQX: Tensor) -> Tensor:
        return values_BQX[self._row_and_place_T]
