"""Subsection `pretrain.model`: which encoder, how large, with which head."""

from typing import Literal

from clozeline.params.section import BelowOne, Count, Positive, Section

FAMILY_NAMES = ("modernbert", "bert")  # the rows of clozeline/model/families.py, which takes seconds to import
SIZE_NAMES = ("mini", "tiny", "small", "base", "large")  # the rows of clozeline/model/sizes.py
_SHAPE = "hidden_size num_hidden_layers num_attention_heads intermediate_size"


def _is_one_way(size: str | None, *numbers: int | None) -> bool:
    return all((number is None) == (size is not None) for number in numbers)


class ModelParams(Section):
    family: str
    size: Literal["mini", "tiny", "small", "base", "large"] | None
    """A row of SIZES, or null and the four numbers below."""
    hidden_size: Count | None
    num_hidden_layers: Count | None
    num_attention_heads: Count | None
    intermediate_size: Count | None
    max_position_embeddings: Count
    dropout: BelowOne
    """Of embeddings, of the outputs of attention and MLP."""
    attention_dropout: BelowOne
    """Of attention weights."""
    head_dropout: BelowOne
    """Of the hidden states that the head is given."""
    stochastic_depth: BelowOne
    """Probability that a row skips a layer, in training; families with pre-norm layers alone (Huang et al. 2016)."""
    activation: Literal["gelu", "gelu_new", "relu", "silu"]
    """Of the MLP and of the head."""
    norm_epsilon: Positive
    initializer_range: Positive
    tie_word_embeddings: bool
    rules = (
        ("family", FAMILY_NAMES.__contains__, f"one of: {', '.join(FAMILY_NAMES)}"),
        (f"size {_SHAPE}", _is_one_way, "a `size`, or null and the four numbers"),
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
