"""The encoder families: a row each. A new family is a new row.

Shapes: N target positions, H hidden, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    ModernBertConfig,
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
    ModernBertForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
)

from clozeline.model.sizes import size_of
from clozeline.params import ModelParams

Objective = Literal["mlm", "clm"]
"""Masked: attention is open to both sides. Causal: each position sees itself and what is before it."""


@dataclass(frozen=True)
class TokenIds:
    """The ids a model's configuration names, and how many there are."""

    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int


@dataclass(frozen=True)
class Form:
    """A family under one objective: which of transformers' classes, how to configure it, where its head is."""

    model_class: type[PreTrainedModel]
    configure: Callable[[ModelParams, TokenIds], PretrainedConfig]
    project: Callable[[Any, Tensor], Tensor]
    """`hidden_NH` → `logits_NV`, so that only targets are projected to the vocabulary."""
    arguments: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Of a call to the encoder, beside its inputs."""


_NO_CACHE = MappingProxyType({"use_cache": False})


def _modernbert(params: ModelParams, ids: TokenIds) -> ModernBertConfig:
    """Pre-norm, rotary positions, gated MLP, no biases (Warner et al. 2024, section 2.1)."""
    return ModernBertConfig(
        **_shared(params, ids),
        **_modern(params, ids),
        classifier_activation=params.activation,
        reference_compile=False,
    )


def _modernbert_decoder(params: ModelParams, ids: TokenIds) -> ModernBertDecoderConfig:
    """The same, its attention causal (Weller et al. 2025, "Ettin")."""
    return ModernBertDecoderConfig(**_shared(params, ids), **_modern(params, ids))


def _modern(params: ModelParams, ids: TokenIds) -> dict[str, Any]:
    return {
        "cls_token_id": ids.cls_id,
        "sep_token_id": ids.sep_id,
        "bos_token_id": ids.cls_id,
        "eos_token_id": ids.sep_id,
        "hidden_activation": params.activation,
        "norm_eps": params.norm_epsilon,
        "embedding_dropout": params.dropout,
        "mlp_dropout": params.dropout,
        "attention_dropout": params.attention_dropout,
    }


def _bert(params: ModelParams, ids: TokenIds) -> BertConfig:
    """Post-norm, learned positions (Devlin et al. 2018)."""
    return BertConfig(
        **_shared(params, ids),
        hidden_act=params.activation,
        layer_norm_eps=params.norm_epsilon,
        hidden_dropout_prob=params.dropout,
        attention_probs_dropout_prob=params.attention_dropout,
    )


def _bert_decoder(params: ModelParams, ids: TokenIds) -> BertConfig:
    config = _bert(params, ids)
    config.is_decoder = True
    return config


def _shared(params: ModelParams, ids: TokenIds) -> dict[str, Any]:
    size = size_of(params)
    return {
        "vocab_size": ids.vocab_size,
        "pad_token_id": ids.pad_id,
        "hidden_size": size.hidden_size,
        "num_hidden_layers": size.num_hidden_layers,
        "num_attention_heads": size.num_attention_heads,
        "intermediate_size": size.intermediate_size,
        "max_position_embeddings": params.max_position_embeddings,
        "initializer_range": params.initializer_range,
        "tie_word_embeddings": params.tie_word_embeddings,
    }


def _project_modernbert(model: Any, hidden_NH: Tensor) -> Tensor:
    logits_NV: Tensor = model.decoder(model.head(hidden_NH))
    return logits_NV


def _project_modernbert_decoder(model: Any, hidden_NH: Tensor) -> Tensor:
    logits_NV: Tensor = model.decoder(model.lm_head(hidden_NH))
    return logits_NV


def _project_bert(model: Any, hidden_NH: Tensor) -> Tensor:
    logits_NV: Tensor = model.cls(hidden_NH)
    return logits_NV


FAMILIES: Mapping[str, Mapping[Objective, Form]] = MappingProxyType(
    {
        "modernbert": {
            "mlm": Form(ModernBertForMaskedLM, _modernbert, _project_modernbert),
            "clm": Form(
                ModernBertDecoderForCausalLM, _modernbert_decoder, _project_modernbert_decoder, arguments=_NO_CACHE
            ),
        },
        "bert": {
            "mlm": Form(BertForMaskedLM, _bert, _project_bert),
            "clm": Form(BertLMHeadModel, _bert_decoder, _project_bert, arguments=_NO_CACHE),
        },
    }
)

FORMS: Mapping[str, tuple[Objective, Form]] = MappingProxyType(
    {form.model_class.__name__: (objective, form) for forms in FAMILIES.values() for objective, form in forms.items()}
)
"""Keyed by the name of the class, which config.json has under `architectures`."""
