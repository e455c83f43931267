"""Architecture of an encoder and its head: every option of our layers (layers.py, heads.py).

A family's row (families/) translates its published configuration to these options and refuses anything else.
"""

from dataclasses import dataclass
from typing import Literal

from torch import nn

Norm = Literal["layer", "rms"]


@dataclass(frozen=True)
class Dropouts:
    """Dropout rates, used in training only."""

    embedding: float = 0.0
    attention: float = 0.0
    """Rate on the attention weights."""
    attention_output: float = 0.0
    mlp_inner: float = 0.0
    """Rate between the two matrices of an MLP."""
    mlp_output: float = 0.0


@dataclass(frozen=True)
class Initialization:
    """Distribution of initial weights. Biases start at 0, norms at 1."""

    std: float
    out_std: float
    """Standard deviation of the matrices that write to the residual stream: the outputs of attention and MLP."""
    cutoff: float | None = None
    """Truncation in standard deviations; None: no truncation."""
    zeroes_padding: bool = True
    """Whether the embedding of the padding token starts at 0."""


@dataclass(frozen=True)
class LayerKind:
    """Attention pattern of a layer."""

    reach: int | None = None
    """Positions that a query sees to each side; None: all."""
    rotary_theta: float | None = None
    """Base of the rotary position embedding (Su et al. 2021); None: no rotary positions."""


@dataclass(frozen=True)
class Architecture:
    """An encoder without its head."""

    vocab_size: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    """Inner width of an MLP; a gated MLP has the same width again for its gate."""
    layers: tuple[LayerKind, ...]
    """Kind of each layer that a token passes, in order."""
    pad_id: int | None
    norm_epsilon: float
    activation: str
    initialization: Initialization
    dropouts: Dropouts = Dropouts()
    embedding_size: int | None = None
    """Width of factorized embeddings, which a matrix projects to `hidden_size` (Lan et al. 2019, section 3.1); None:
    embeddings are as wide as the layers.
    """
    num_positions: int = 0
    """Rows of the table of learned positions; 0: no table."""
    counts_from_pad: bool = False
    """Whether positions count real tokens only, starting at `pad_id` + 1 (RoBERTa)."""
    num_types: int = 0
    """Number of token types (segments)."""
    is_pre_norm: bool = False
    """Whether norms precede attention and MLP and follow the last layer (pre-norm); otherwise they follow each residual
    sum (Xiong et al. 2020).
    """
    norm: Norm = "layer"
    has_norm_bias: bool = True
    has_attention_bias: bool = True
    has_mlp_bias: bool = True
    is_gated: bool = False
    """Whether the MLP multiplies its inner values with a gate (Shazeer 2020)."""
    is_fused: bool = False
    """Whether one matrix computes queries, keys and values."""
    is_causal: bool = False
    """Whether a position sees only itself and earlier positions."""
    weights_of_layer: tuple[int, ...] | None = None
    """Index of the weights that each layer uses; None: each layer has its own. ALBERT's layers share weights."""

    @property
    def table_width(self) -> int:
        return self.embedding_size or self.hidden_size

    @property
    def uses(self) -> tuple[int, ...]:
        return self.weights_of_layer or tuple(range(len(self.layers)))


Pooling = Literal["first", "last", "mean"]


@dataclass(frozen=True)
class HeadShape:
    """Parts of a head, in order: dropout, dense, activation, norm, dropout, output. Each part is optional."""

    num_outputs: int
    """Width of the output; 0: no output layer, the head ends before it."""
    dense_size: int | None = None
    """Width of the dense layer; None: no dense layer."""
    has_dense_bias: bool = True
    activation: str | None = None
    norm_epsilon: float | None = None
    has_norm_bias: bool = True
    has_output_bias: bool = True
    dropout_before: float = 0.0
    dropout_after: float = 0.0
    pooling: Pooling | None = None
    """Pooling of a text: its first token, its last, or the mean over all; None: one output per token."""
    is_tied: bool = False
    """Whether the output matrix is the token table."""
    dense_std: float = 0.02
    output_std: float = 0.02
    cutoff: float | None = None


def norm_of(kind: Norm, width: int, epsilon: float, *, has_bias: bool) -> nn.Module:
    if kind == "rms":
        return nn.RMSNorm(width, eps=epsilon)
    return nn.LayerNorm(width, eps=epsilon, bias=has_bias)
