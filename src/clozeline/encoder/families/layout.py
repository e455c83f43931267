"""How a family is published: its configuration, and what its weights are called.

Names are written without the prefix of the encoder; `{layer}` is the number of a layer. A row translates a module's
name, or that of one of its parameters.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from transformers import PretrainedConfig
from transformers.activations import ACT2FN

from clozeline.encoder.architecture import Architecture, HeadShape
from clozeline.errors import ArtifactError

Objective = Literal["mlm", "clm", "rtd"]
"""Masked: attention is open to both sides. Causal: each position sees itself and what is before it. Replaced-token
detection: a small masked model replaces tokens, and the encoder, open to both sides, is to find them."""
TaskHead = Literal["feature-extraction", "text-classification", "token-classification", "question-answering"]
HeadKind = Objective | TaskHead
Names = Mapping[str, str]

_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class HeadRow:
    """A head of a family."""

    class_name: str
    """Of transformers, which config.json has under `architectures`."""
    shape: Callable[[Any], HeadShape]
    """Configuration → head."""
    names: Names = field(default_factory=lambda: MappingProxyType({}))
    """`{encoder}`, at the beginning of a published name, is the prefix of the encoder."""


@dataclass(frozen=True)
class Layout:
    """A kind of model (`model_type` in config.json) that runs on our layers."""

    config_class: type[PretrainedConfig]
    prefix: str
    """Of the encoder's weights, where a head stands beside it."""
    architecture: Callable[[Any], Architecture]
    """Raises ArtifactError of a configuration that it does not cover."""
    names: Names
    heads: Mapping[HeadKind, HeadRow]
    inner_layers: Callable[[Any], int] = lambda config: 1
    """Of ALBERT's groups."""

    def published(
        self, names: Iterable[str], config: Any, kind: HeadKind, *, has_prefix: bool | None = None
    ) -> dict[str, str]:
        """Our name of each parameter → the published one.

        `has_prefix`: whether the encoder's weights were saved beside a head; None: as a model of this kind is saved.
        """
        beside_head = kind != "feature-extraction" if has_prefix is None else has_prefix
        prefix = f"{self.prefix}." if beside_head else ""
        return {name: self._published(name, config, self.heads[kind], prefix) for name in names}

    def _published(self, name: str, config: Any, head: HeadRow, prefix: str) -> str:
        part, _, inner = name.partition(".")
        if part == "head":
            return _renamed(inner, head.names).format(encoder=prefix)
        found = _LAYER.match(inner)
        number = int(found.group(1)) if found else 0
        group, place = divmod(number, self.inner_layers(config))
        theirs = _renamed(_LAYER.sub("layers.{}.", inner), self.names)
        return prefix + theirs.format(layer=number, group=group, place=place)


def _renamed(name: str, names: Names) -> str:
    module, _, leaf = name.rpartition(".")
    return names.get(name) or f"{names[module]}.{leaf}"


def check_covered(config: Any, **allowed: tuple[object, ...]) -> None:
    """Raises:
    ArtifactError: a field of the configuration has another value than `allowed`; one that is not there fits.
    """
    for name, values in allowed.items():
        given = getattr(config, name, values[0])
        if given not in values:
            raise ArtifactError(
                f"config.json of a {config.model_type} says what our layers do not do",
                given=f"`{name}`: {given}",
                expected=f"`{name}`: {' or '.join(map(str, values))}",
                do="take another checkpoint of this family",
            )


def known_activation(config: Any, name: str) -> str:
    """Raises:
    ArtifactError: transformers has no such activation.
    """
    given = getattr(config, name)
    if given not in ACT2FN:
        raise ArtifactError(
            f"config.json of a {config.model_type} names an activation that is not known",
            given=f"`{name}`: {given}",
            expected=f"one of: {', '.join(sorted(ACT2FN))}",
            do="take another checkpoint of this family",
        )
    return str(given)
