"""Floating-point operations for each token, by formula."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Self

from torch import nn

from clozeline.encoder.detection import ReplacedTokenPair
from clozeline.encoder.language_model import LanguageModel, objective_of
from clozeline.planning.counting import layer_matrices

_BACKWARD = 2
"""Backward passes cost twice the forward pass: a product for the inputs, one for the weights."""


@dataclass(frozen=True)
class Compute:
    """FLOPs for each token of a full row; a multiplication and an addition are two.

    Kaplan et al. 2020, section 2.1 and table 1: forward 2·N for the N weights that a token is multiplied with, and
    4·layers·length·hidden where each token attends to all (2· where half of them are hidden from it); forward and
    backward 3 times that, hence "6·N". Where families differ: a layer that is used several times counts as often
    (ALBERT), tokens are compared with relative positions too (DeBERTa), or with a window, to whole numbers of which
    rows are padded (Longformer). The head, with its vocabulary, counts for the targets alone: nothing else is named.

    A last layer that is computed for the targets alone costs less than is said here. Norms, activations, and what is
    done once for a batch are left out, as the paper leaves them out.
    """

    body: float
    attention: float
    head: float

    @classmethod
    def of(cls, model: LanguageModel, *, length: int, target_share: float) -> Self:
        """`length`: tokens of a row. `target_share`: targets over tokens, 0-1; a discriminator is asked for all."""
        if isinstance(model, ReplacedTokenPair):
            return cls._sum(
                cls.of(model.discriminator, length=length, target_share=1.0),
                cls.of(model.generator, length=length, target_share=target_share),
            )
        tables = {id(module.weight) for module in model.base_model.modules() if isinstance(module, nn.Embedding)}
        own = {id(parameter): parameter for parameter in _multiplied(model)}
        layers = {id(matrix) for matrix in layer_matrices(model)} & own.keys() - tables
        inside = sum(own[key].numel() for key in layers)
        outside = sum(matrix.numel() for key, matrix in own.items() if key not in layers | tables)
        seen = 0.5 if objective_of(model) == "clm" else 1.0
        padded = padded_length(model, length) / length
        return cls(
            body=2.0 * (inside * _times_used(model) + outside) * padded,
            attention=4.0 * num_layers(model) * _num_compared(model, length) * hidden_size(model) * seen * padded,
            head=2.0 * target_share * _head_weights(model),
        )

    @classmethod
    def _sum(cls, *each: Self) -> Self:
        return cls(*(sum(getattr(one, field.name) for one in each) for field in fields(cls)))

    @property
    def forward(self) -> float:
        return self.body + self.attention + self.head

    @property
    def training(self) -> float:
        return (1 + _BACKWARD) * self.forward


def _multiplied(model: LanguageModel) -> Iterator[nn.Parameter]:
    """Weights of the encoder that a token may be multiplied with, tables among them; not those that pre-training leaves
    idle: of the first token alone (a pooler), of global attention."""
    for name, parameter in model.base_model.named_parameters():
        if parameter.ndim >= 2 and "pooler." not in name and "_global." not in name:
            yield parameter


def padded_length(model: LanguageModel, length: int) -> int:
    """Tokens of a row as the encoder computes it."""
    window = window_of(model)
    return length if window is None else math.ceil(length / window) * window


def _num_compared(model: LanguageModel, length: int) -> float:
    """What each token is compared with and takes values from, the mean of the two.

    Longformer's rows are cut into chunks of a window, each half over the one before (Beltagy et al. 2020, section 3.2),
    and values are taken from three halves. In DeBERTa, content is compared with positions and positions with content
    (He et al. 2020, equation 4), of `position_buckets` to each side.
    """
    window = window_of(model)
    if window is not None:
        half = window / 2
        return (4 * half * (1 - half / padded_length(model, length)) + 3 * half) / 2
    num_positions = 2 * getattr(model.config, "position_buckets", 0)
    return length + num_positions


def window_of(model: LanguageModel) -> int | None:
    windows = getattr(model.config, "attention_window", None)
    return None if windows is None else max(windows) if isinstance(windows, list) else int(windows)


def hidden_size(model: LanguageModel) -> int:
    """Of stock models the configuration knows it, of an encoder of your own the encoder."""
    owner: Any = model.config if hasattr(model.config, "hidden_size") else model.base_model
    return int(owner.hidden_size)


def num_layers(model: LanguageModel) -> int:
    """Layers that a token passes; of an encoder of your own, the longest list of layers in it."""
    stated = getattr(model.config, "num_hidden_layers", None)
    lists = (len(module) for module in model.base_model.modules() if isinstance(module, nn.ModuleList))
    return int(stated) if stated is not None else max(lists, default=1)


def _times_used(model: LanguageModel) -> float:
    groups = getattr(model.config, "num_hidden_groups", None)
    return 1.0 if groups is None else num_layers(model) / groups


def _head_weights(model: LanguageModel) -> int:
    """Weights of all linear maps outside the encoder, the tied one to the vocabulary among them."""
    inner = set(model.base_model.modules())
    return sum(
        module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear) and module not in inner
    )
