"""What is known of a family of encoders."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from clozeline.encoder.families.layout import Objective
from clozeline.params import ModelParams


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
    """A family under one objective."""

    class_name: str
    """Of transformers, which config.json has under `architectures`."""
    config_class: type[PretrainedConfig]
    configure: Configure


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
    is_pre_norm: bool = False
    """Layers add to what they are given, so that one can be skipped; else their outputs are normalized."""
    fixed: tuple[Fixed, ...] = ()
    exports: bool = True
    """To ONNX, with the same logits for any batch and length."""


def causal(configure: Configure) -> Configure:
    """The same configuration, of a decoder: transformers' older classes have both in one."""

    def configure_causal(params: ModelParams, ids: TokenIds) -> PretrainedConfig:
        config: Any = configure(params, ids)
        config.is_decoder = True
        return config

    return configure_causal
