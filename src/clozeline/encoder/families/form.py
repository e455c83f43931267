"""What is known of a family of encoders.

Shapes: T targets, H hidden, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from clozeline.encoder.stock_classes import attention_of
from clozeline.params import ModelParams

Objective = Literal["mlm", "clm", "rtd"]
"""Masked: attention is open to both sides. Causal: each position sees itself and what is before it. Replaced-token
detection: a small masked model replaces tokens, and the encoder, open to both sides, is to find them."""


@dataclass(frozen=True)
class TokenIds:
    """The ids a model's configuration names, and how many there are."""

    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int


Configure = Callable[[ModelParams, TokenIds], PretrainedConfig]


@dataclass(frozen=True)
class Form:
    """A family under one objective: which of transformers' classes, how to configure it, where its head is."""

    model_class: type[PreTrainedModel]
    configure: Configure
    project: Callable[[Any, Tensor], Tensor]
    """`hidden_TH` → `logits_TV`, so that only targets are projected to the vocabulary; of a discriminator `logits_T`:
    was this token replaced?"""
    arguments: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Of a call to the encoder, beside its inputs."""

    @property
    def attention(self) -> str:
        return attention_of(self.model_class)


NO_CACHE: Mapping[str, Any] = MappingProxyType({"use_cache": False})


@dataclass(frozen=True)
class Fixed:
    """A knob that the classes of a family do not ask for: changed by us, stock transformers would not follow."""

    knob: str
    value: object
    where: str


@dataclass(frozen=True)
class Family:
    """A kind of encoder, under each objective that transformers has it for."""

    forms: Mapping[Objective, Form]
    """Under `rtd` it is that of the discriminator, whose generator has the form under `mlm`."""
    dropouts: Callable[[ModelParams], dict[str, float]]
    """What the dropout rates are called in the configuration."""
    layers: Callable[[Any], nn.ModuleList] | None = None
    """Layers that add to what they are given, so that one can be skipped; None: their outputs are normalized."""
    fixed: tuple[Fixed, ...] = ()
    exports: bool = True
    """To ONNX, with the same logits for any batch and length."""


def causal(configure: Configure) -> Configure:
    """The same configuration, of a decoder: transformers' older classes have both in one."""

    def configure_causal(params: ModelParams, ids: TokenIds) -> PretrainedConfig:
        config = configure(params, ids)
        config.is_decoder = True
        return config

    return configure_causal
