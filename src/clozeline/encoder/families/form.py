"""Description of an encoder family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from clozeline.encoder.families.layout import LanguageHead
from clozeline.params import ModelParams


@dataclass(frozen=True)
class TokenIds:
    """Vocabulary size and special ids for a model's configuration."""

    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int


Configure = Callable[[ModelParams, TokenIds], PretrainedConfig]


@dataclass(frozen=True)
class Form:
    """An encoder family combined with one kind of head."""

    class_name: str
    """Class of transformers, as in config.json under `architectures`."""
    config_class: type[PretrainedConfig]
    configure: Configure


@dataclass(frozen=True)
class Fixed:
    """A knob that a family's classes in transformers ignore. If we applied it, stock transformers would not follow."""

    knob: str
    value: object
    where: str


@dataclass(frozen=True)
class Family:
    """A family of encoders, with a form for each head that transformers has for it."""

    forms: Mapping[LanguageHead, Form]
    """Forms by head. `rtd` is the discriminator; its generator has the form under `mlm`."""
    dropouts: Callable[[ModelParams], dict[str, float]]
    """Dropout rates under the names of the family's configuration."""
    is_pre_norm: bool = False
    """Whether layers add to their input, so that one can be skipped; otherwise they normalize their output."""
    fixed: tuple[Fixed, ...] = ()
    exports: bool = True
    """Whether an exported graph gives the same logits for any batch size and length."""


def causal(configure: Configure) -> Configure:
    """Return `configure` for a decoder: transformers' older classes serve as encoder and as decoder."""

    def configure_causal(params: ModelParams, ids: TokenIds) -> PretrainedConfig:
        config: Any = configure(params, ids)
        config.is_decoder = True
        return config

    return configure_causal
