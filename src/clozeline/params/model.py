"""Subsection `pretrain.model`: which encoder, how large, with which head."""

import re
from typing import Annotated, Literal, get_args

from pydantic import Field

from clozeline.params.section import BelowOne, Count, Positive, Section

FAMILY_NAMES = (  # the rows of clozeline/model/families/, which takes seconds to import
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
Size = Literal["mini", "tiny", "small", "base", "large"]
"""The rows of clozeline/model/sizes.py."""
SIZE_NAMES: tuple[str, ...] = get_args(Size)
OWN_ENCODER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""`package.module:build`: an encoder of your own (clozeline/model/encoders.py)."""
_FAMILY_EXPECTED = f"one of: {', '.join(FAMILY_NAMES)}; or `package.module:build` for an encoder of your own"
_SHAPE = "hidden_size num_hidden_layers num_attention_heads intermediate_size"


def _is_one_way(size: str | None, *numbers: int | None) -> bool:
    return all((number is None) == (size is not None) for number in numbers)


def _is_family(name: str) -> bool:
    return name in FAMILY_NAMES or OWN_ENCODER.fullmatch(name) is not None


class ModelParams(Section):
    family: str
    """A row of FAMILIES, or `package.module:build`, which makes an encoder of your own."""
    size: Size | None
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
    """Probability that a row skips the last layer, in training; of the others less, on a line (Huang et al. 2016).
    Families with pre-norm layers alone."""
    activation: Literal["gelu", "gelu_new", "relu", "silu"]
    """Of the MLP and of the head."""
    norm_epsilon: Positive
    initializer_range: Positive
    tie_word_embeddings: bool
    generator_fraction: Annotated[float, Field(gt=0, le=1)]
    """Objective `rtd` alone: widths of the generator over those of the encoder (Clark et al. 2020, section 3.2: 1/4 to
    1/2); it has as many layers."""
    rules = (
        (
            "family",
            _is_family,
            _FAMILY_EXPECTED,
        ),
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
