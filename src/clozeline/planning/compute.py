"""Floating-point operations per token, by formula."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Self

from torch import nn

from clozeline.language_modelling.detection import ReplacedTokenPair
from clozeline.language_modelling.language_model import LanguageModel, head_of
from clozeline.planning.counting import encoder_matrices

_BACKWARD = 2
"""A backward pass costs twice the forward pass: one product for the inputs and one for the weights."""


@dataclass(frozen=True)
class Compute:
    """FLOPs per token of a full row; a multiplication and an addition are two operations.

    Kaplan et al. 2020, section 2.1 and table 1: the forward pass costs 2·N for the N weights that multiply a token, and
    4·layers·length·hidden if each token attends to all (2· if attention is causal). Forward and backward cost 3 times
    that, hence "6·N". Differences between families: a layer that is used several times counts as often (ALBERT);
    tokens are compared with relative positions too (DeBERTa); or with a window, and rows are padded to whole windows
    (Longformer). The head, with its vocabulary, counts for the targets only, because only they are predicted.

    A last layer that is computed only for the targets costs less than estimated here. Norms, activations, and work done
    once per batch are left out, as in the paper.
    """

    body: float
    attention: float
    head: float

    @classmethod
    def of(cls, model: LanguageModel, *, length: int, target_share: float) -> Self:
        """Return the compute of `model`.

        `length`: tokens per row. `target_share`: targets / tokens, 0-1; a discriminator predicts at every token.
        """
        if isinstance(model, ReplacedTokenPair):
            return cls._sum(
                cls.of(model.discriminator, length=length, target_share=1.0),
                cls.of(model.generator, length=length, target_share=target_share),
            )
        tables = {id(module.weight) for module in model.base_model.modules() if isinstance(module, nn.Embedding)}
        own = {id(parameter): parameter for parameter in _multiplied(model)}
        layers = {id(matrix) for matrix in encoder_matrices(model)} & own.keys() - tables
        inside = sum(own[key].numel() for key in layers)
        outside = sum(matrix.numel() for key, matrix in own.items() if key not in layers | tables)
        seen = 0.5 if head_of(model) == "clm" else 1.0
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
    """Yield the weights of the encoder that may multiply a token, including tables.

    Excluded are weights that pre-training leaves unused: those of the pooler and of global attention.
    """
    for name, parameter in model.base_model.named_parameters():
        if parameter.ndim >= 2 and "pooler." not in name and "_global." not in name:
            yield parameter


def padded_length(model: LanguageModel, length: int) -> int:
    """Return the length of a row in tokens after the encoder's padding."""
    window = window_of(model)
    return length if window is None else math.ceil(length / window) * window


def _num_compared(model: LanguageModel, length: int) -> float:
    """Return the number of attended positions per token, averaged over both products: queries × keys, and scores ×
    values.

    Longformer cuts rows into chunks of one window that overlap by half (Beltagy et al. 2020, section 3.2), and takes
    values from three halves. DeBERTa compares content with positions and positions with content (He et al. 2020,
    equation 4), over `position_buckets` on each side.
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
    """Return the hidden size, from the configuration of a stock model or from an encoder of your own."""
    owner: Any = model.config if hasattr(model.config, "hidden_size") else model.base_model
    return int(owner.hidden_size)


def num_layers(model: LanguageModel) -> int:
    """Return the number of layers that a token passes; for an encoder of your own, its longest `ModuleList`."""
    stated = getattr(model.config, "num_hidden_layers", None)
    lists = (len(module) for module in model.base_model.modules() if isinstance(module, nn.ModuleList))
    return int(stated) if stated is not None else max(lists, default=1)


def _times_used(model: LanguageModel) -> float:
    groups = getattr(model.config, "num_hidden_groups", None)
    return 1.0 if groups is None else num_layers(model) / groups


def _head_weights(model: LanguageModel) -> int:
    """Return the number of weights in linear layers outside the encoder, including the tied vocabulary layer."""
    inner = set(model.base_model.modules())
    return sum(
        module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear) and module not in inner
    )
