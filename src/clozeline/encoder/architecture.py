"""What an encoder and its head are made of: every choice that our layers (layers.py, heads.py) know, and no other.

A family's row (families/) translates its published configuration to this, and refuses what cannot be said here.
"""

from dataclasses import dataclass
from typing import Literal

from torch import nn
from transformers.activations import ACT2FN

Norm = Literal["layer", "rms"]


@dataclass(frozen=True)
class Dropouts:
    """Rates, of training alone."""

    embedding: float = 0.0
    attention: float = 0.0
    """Of attention weights."""
    attention_output: float = 0.0
    mlp_inner: float = 0.0
    """Between the two matrices of an MLP."""
    mlp_output: float = 0.0


@dataclass(frozen=True)
class Initialization:
    """How weights are drawn; biases begin at 0, norms at 1."""

    std: float
    out_std: float
    """Of the matrices whose product is added to what they were given: of attention's output and the MLP's."""
    cutoff: float | None = None
    """Nothing is drawn beyond so many standard deviations; None: nothing is cut off."""
    zeroes_padding: bool = True
    """The padding token begins at 0."""


@dataclass(frozen=True)
class LayerKind:
    """Where the attention of a layer looks."""

    reach: int | None = None
    """Positions to each side; None: all."""
    rotary_theta: float | None = None
    """Base of the rotary position embedding (Su et al. 2021); None: no rotary positions."""


@dataclass(frozen=True)
class Architecture:
    """An encoder without its head."""

    vocab_size: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    """Width inside an MLP; a gated one has as much again for its gate."""
    layers: tuple[LayerKind, ...]
    """Of each layer that a token passes."""
    pad_id: int | None
    norm_epsilon: float
    activation: str
    initialization: Initialization
    dropouts: Dropouts = Dropouts()
    embedding_size: int | None = None
    """Of factorized embeddings (Lan et al. 2019, section 3.1), which a matrix brings to the layers' width; None: they
    are as wide as the layers."""
    num_positions: int = 0
    """Rows of a table of learned positions; 0: there is none."""
    counts_from_pad: bool = False
    """Positions are counted from `pad_id` + 1 on, and by real tokens alone (RoBERTa)."""
    num_types: int = 0
    """Number of token types (segments)."""
    is_pre_norm: bool = False
    """Norms stand before attention and MLP, and after the last layer; else after each sum (Xiong et al. 2020)."""
    norm: Norm = "layer"
    has_norm_bias: bool = True
    has_attention_bias: bool = True
    has_mlp_bias: bool = True
    is_gated: bool = False
    """The MLP multiplies its inner values with a gate (Shazeer 2020)."""
    is_fused: bool = False
    """Queries, keys and values come out of one matrix."""
    is_causal: bool = False
    """A position sees itself and what is before it."""
    weights_of_layer: tuple[int, ...] | None = None
    """Which weights each layer uses; None: each its own (ALBERT: all the first ones)."""

    @property
    def table_width(self) -> int:
        return self.embedding_size or self.hidden_size

    @property
    def uses(self) -> tuple[int, ...]:
        return self.weights_of_layer or tuple(range(len(self.layers)))


Pooling = Literal["first", "last", "mean"]


@dataclass(frozen=True)
class HeadShape:
    """Dropout, dense, activation, norm, dropout, output: what of it there is."""

    num_outputs: int
    """0: no output, what is dense is all."""
    dense_size: int | None = None
    """None: the output follows at once."""
    has_dense_bias: bool = True
    activation: str | None = None
    norm_epsilon: float | None = None
    has_norm_bias: bool = True
    has_output_bias: bool = True
    dropout_before: float = 0.0
    dropout_after: float = 0.0
    pooling: Pooling | None = None
    """How a text is pooled: its first token, its last, or the mean over all; None: one output per token."""
    is_tied: bool = False
    """The output is the table of tokens."""
    dense_std: float = 0.02
    output_std: float = 0.02
    cutoff: float | None = None


def norm_of(kind: Norm, width: int, epsilon: float, *, has_bias: bool) -> nn.Module:
    if kind == "rms":
        return nn.RMSNorm(width, eps=epsilon)
    return nn.LayerNorm(width, eps=epsilon, bias=has_bias)


def activation_of(name: str) -> nn.Module:
    module: nn.Module = ACT2FN[name]
    return module
