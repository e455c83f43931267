"""An encoder family: its description, and its published layout (configuration and names of its weights).

Names lack the prefix of the encoder; `{layer}` stands for the number of a layer. An entry translates the name of a
module or of a single parameter.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from transformers import PretrainedConfig

from clozeline.encoder.architecture import OWN_ACTIVATIONS, Architecture, HeadShape
from clozeline.params.model import ModelParams
from clozeline.system.errors import ArtifactError

# `mlm` predicts masked tokens and attends to both sides. `clm` predicts the next token; each position sees itself and
# earlier ones. `rtd` (replaced-token detection) attends to both sides and finds tokens that a small masked model
# replaced.
LanguageHead = Literal["mlm", "clm", "rtd"]
TaskHead = Literal["feature-extraction", "text-classification", "token-classification", "question-answering"]
HeadKind = LanguageHead | TaskHead
Names = Mapping[str, str]

_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class HeadTraits:
    """A kind of head, whatever the family."""

    ending: str  # of the class in config.json, under `architectures`
    mapping: str  # transformers' own table from configuration class to model class
    # Whether its outputs are the tokens of the vocabulary. Beside an encoder with a language head that predicts none,
    # there is a generator that does.
    predicts_tokens: bool = False
    is_single: bool = False  # whether it has one output, without an axis for it


HEADS: Mapping[HeadKind, HeadTraits] = {
    "mlm": HeadTraits("ForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING", predicts_tokens=True),
    "clm": HeadTraits("ForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING", predicts_tokens=True),
    "rtd": HeadTraits("ForPreTraining", "MODEL_FOR_PRETRAINING_MAPPING", is_single=True),
    "feature-extraction": HeadTraits("Model", "MODEL_MAPPING"),
    "text-classification": HeadTraits("ForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING"),
    "token-classification": HeadTraits("ForTokenClassification", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING"),
    "question-answering": HeadTraits("ForQuestionAnswering", "MODEL_FOR_QUESTION_ANSWERING_MAPPING"),
}
_ODD_NAMES = MappingProxyType({"BertForCausalLM": "BertLMHeadModel"})


def class_name_of(config_class: type[PretrainedConfig], kind: HeadKind) -> str:
    """Return the name of the class for a head, as in config.json under `architectures`."""
    name = config_class.__name__.removesuffix("Config") + HEADS[kind].ending
    return _ODD_NAMES.get(name, name)


@dataclass(frozen=True)
class HeadRow:
    """A head of a family."""

    shape: Callable[[Any], HeadShape]  # maps the configuration to the head
    # Published names; a leading `{encoder}` stands for the prefix of the encoder.
    names: Names = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Layout:
    """A kind of model (`model_type` in config.json) that runs on our layers."""

    config_class: type[PretrainedConfig]
    prefix: str  # prefix of the encoder's weights if a head is saved beside it
    # Maps the configuration to the architecture; raises ArtifactError if our layers do not support it.
    architecture: Callable[[Any], Architecture]
    names: Names
    heads: Mapping[HeadKind, HeadRow]
    # Maps the configuration to the number of layers in a group (ALBERT).
    inner_layers: Callable[[Any], int] = lambda config: 1

    def published(
        self, names: Iterable[str], config: Any, kind: HeadKind, *, has_prefix: bool | None = None
    ) -> dict[str, str]:
        """Return the published name of each of our parameter names.

        `has_prefix`: whether the encoder's weights were saved beside a head; None: as models of this kind are saved.
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
    """Refuse a configuration that our layers do not support.

    Raises:
        ArtifactError: a field has a value outside `allowed`. A missing field is accepted.
    """
    for name, values in allowed.items():
        given = getattr(config, name, values[0])
        if given not in values:
            raise not_covered(config, f"`{name}`: {given}", f"`{name}`: {' or '.join(map(str, values))}")


def not_covered(config: Any, given: str, expected: str) -> ArtifactError:
    return ArtifactError(
        f"config.json of this {config.model_type} model has {given}, and our layers support only {expected}",
        do="take another checkpoint of this family",
    )


def known_activation(config: Any, name: str) -> str:
    """Return the activation in field `name` of the configuration.

    Raises:
        ArtifactError: transformers has no such activation.
    """
    given = str(getattr(config, name))
    if given not in OWN_ACTIVATIONS:
        from transformers.activations import ACT2FN

        check_covered(config, **{name: tuple(sorted(ACT2FN))})
    return given


@dataclass(frozen=True)
class TokenIds:
    """Vocabulary size and special ids for a model's configuration."""

    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int


@dataclass(frozen=True)
class Fixed:
    """A knob that a family's classes in transformers ignore. If we applied it, stock transformers would not follow."""

    knob: str
    value: object
    where: str


@dataclass(frozen=True)
class Family:
    """A family of encoders, with a form for each head that transformers has for it."""

    # Class of the configuration by head. `rtd` is the discriminator; its generator has the form under `mlm`.
    forms: Mapping[LanguageHead, type[PretrainedConfig]]
    values: Callable[[ModelParams, TokenIds], dict[str, Any]]  # returns the fields of the configuration
    dropouts: Callable[[ModelParams], dict[str, float]]  # dropout rates under the names of the family's configuration
    # Whether layers add to their input, so that one can be skipped; otherwise they normalize their output.
    is_pre_norm: bool = False
    fixed: tuple[Fixed, ...] = ()
    takes_types: bool = False  # whether exported graphs take token types, which tell the texts of a pair apart

    def configure(self, head: LanguageHead, params: ModelParams, ids: TokenIds) -> PretrainedConfig:
        config: Any = self.forms[head](**self.values(params, ids))
        # transformers' older classes serve as encoder and as decoder.
        if head == "clm" and self.forms[head] is self.forms["mlm"]:
            config.is_decoder = True
        return config
