"""Subsection `pretrain.model` (family, size and head of the encoder); optimizer and learning rate of any training."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Literal, Self, get_args

from pydantic import Field

from clozeline.params.schema import BelowOne, Count, Fraction, NotNegative, Positive, Section, Share, set_for

FAMILY_NAMES = (  # rows of clozeline/encoder/families/, which takes seconds to import
    "modernbert",
    "bert",
    "roberta",
    "xlm-roberta",
    "distilbert",
    "albert",
    "electra",
    "deberta-v2",
    "deberta-v3",
    "longformer",
    "big_bird",
)
# Those with a form for the objective `clm`.
CAUSAL_FAMILIES = ("modernbert", "bert", "roberta", "xlm-roberta", "electra", "big_bird")
# Families that train here but cannot be exported, and why.
NOT_EXPORTED: Mapping[str, str] = {
    "longformer": "torch.export cannot trace its windows, which Python code chooses by the length of the text"
}
# The rows of SIZES in clozeline/encoder/architecture.py.
Size = Literal["mini", "tiny", "small", "base", "large"]
SIZE_NAMES: tuple[str, ...] = get_args(Size)
# `package.module:build`: an encoder of your own (clozeline/encoder/own.py).
OWN_ENCODER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_FAMILY_EXPECTED = f"one of: {', '.join(FAMILY_NAMES)}; or `package.module:build` for an encoder of your own"
_SHAPE = "hidden_size num_hidden_layers num_attention_heads intermediate_size"
# Knobs of the shape as they are beside a `size`.
OF_SIZE = dict.fromkeys(_SHAPE.split())


def may_be_causal(family: str) -> bool:
    """Return False for the families without a form for the objective `clm`."""
    return family in CAUSAL_FAMILIES or family not in FAMILY_NAMES


def is_own(family: str) -> bool:
    """Whether `family` names an encoder of the user's own."""
    return OWN_ENCODER.fullmatch(family) is not None


class ModelParams(Section):
    family: str  # a row of FAMILIES, or `package.module:build`, a function that builds your own encoder
    size: Size | None  # a row of SIZES; null: the four numbers below
    hidden_size: Count | None = None
    num_hidden_layers: Count | None = None
    num_attention_heads: Count | None = None
    intermediate_size: Count | None = None
    max_position_embeddings: Count
    dropout: BelowOne  # dropout of embeddings and of the outputs of attention and MLP
    attention_dropout: BelowOne  # dropout of attention weights
    head_dropout: BelowOne  # dropout of the hidden states that the head reads
    # Probability that a row skips the last layer in training; it rises linearly with depth (Huang et al. 2016). Only
    # for families with pre-norm layers.
    stochastic_depth: BelowOne
    activation: Literal["gelu", "gelu_new", "relu", "silu"]  # activation of the MLP and of the head
    norm_epsilon: Positive
    initializer_range: Positive
    tie_word_embeddings: bool
    # Objective `rtd` only: ratio of the generator's widths to the encoder's (Clark et al. 2020, section 3.2: 1/4 to
    # 1/2). The number of layers is the same.
    generator_fraction: Annotated[float, Field(gt=0, le=1)]
    rules = (
        ("family", lambda family: family in FAMILY_NAMES or is_own(family), _FAMILY_EXPECTED),
        (
            f"size {_SHAPE}",
            lambda size, *numbers: all((number is None) == (size is not None) for number in numbers),
            "a `size`, or null and the four numbers",
        ),
        (
            "hidden_size num_attention_heads",
            lambda h, n: h is None or h % n == 0,
            "a multiple of `num_attention_heads`",
        ),
        (
            "family hidden_size num_attention_heads",
            lambda family, h, n: h is None or family != "modernbert" or h // n % 2 == 0,
            "an even `hidden_size` / `num_attention_heads`: rotary positions turn pairs of dimensions",
        ),
    )


class OptimizerParams(Section):
    # The rows of clozeline/training/optimizers, which takes seconds to import.
    kind: Literal["adamw", "muon", "novograd", "lamb", "stableadamw"]
    learning_rate: Positive
    # `muon` only: learning rate of the hidden matrices; `learning_rate` is then that of embeddings, norms and head.
    matrix_learning_rate: Positive | None
    beta1: BelowOne
    beta2: BelowOne
    epsilon: Positive
    weight_decay: NotNegative  # weight decay of matrices; norms and biases never decay
    clip_norm: Positive
    rules = (
        ("kind matrix_learning_rate", set_for("muon"), "set `matrix_learning_rate` for `muon`, null for any other"),
    )

    def times(self, factor: float) -> Self:
        """Return the same with `factor` times the learning rates, as people multiply them: 3 times 5e-05 is 0.00015."""
        matrix = self.matrix_learning_rate
        changed = {
            "learning_rate": _product(factor, self.learning_rate),
            "matrix_learning_rate": None if matrix is None else _product(factor, matrix),
        }
        return self.model_copy(update=changed)


def _product(factor: float, rate: float) -> float:
    """Return the product of both as they are written; in binary it would be 0.00015000000000000001."""
    return float(Decimal(str(factor)) * Decimal(str(rate)))


class ScheduleParams(Section):
    # The rows of DECAYS in clozeline/training/optimizers.py; wsd: warm-up, stable, decay (Hägele et al. 2024).
    decay: Literal["cosine", "linear", "polynomial", "constant", "wsd"]
    warmup_fraction: Share  # share of the steps, at the beginning, over which the rate rises to its peak
    initial_fraction: BelowOne  # fraction of the learning rate at the start of the warm-up
    final_fraction: Share  # fraction of the learning rate at the last step
    power: Positive  # `polynomial` only: the exponent
    decay_fraction: Fraction  # `wsd` only: share of the budget, at its end, over which the rate falls
