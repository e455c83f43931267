"""ModernBERT: pre-norm, rotary positions, gated MLPs, no biases, local attention in two layers of three.

Shapes: T targets, H hidden, V vocabulary.
"""

from typing import Any

from torch import Tensor, nn
from transformers import (
    ModernBertConfig,
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
    ModernBertForMaskedLM,
)

from clozeline.encoder.families.form import NO_CACHE, Family, Form, TokenIds
from clozeline.encoder.sizes import shape_of
from clozeline.params import ModelParams


def _dropouts(params: ModelParams) -> dict[str, float]:
    return {
        "embedding_dropout": params.dropout,
        "mlp_dropout": params.dropout,
        "attention_dropout": params.attention_dropout,
    }


def _values(params: ModelParams, ids: TokenIds) -> dict[str, Any]:
    shape = shape_of(params, gated=True)
    return {
        "vocab_size": ids.vocab_size,
        "pad_token_id": ids.pad_id,
        "cls_token_id": ids.cls_id,
        "sep_token_id": ids.sep_id,
        "bos_token_id": ids.cls_id,
        "eos_token_id": ids.sep_id,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": params.max_position_embeddings,
        "hidden_activation": params.activation,
        "classifier_activation": params.activation,
        "norm_eps": params.norm_epsilon,
        "initializer_range": params.initializer_range,
        "tie_word_embeddings": params.tie_word_embeddings,
        **_dropouts(params),
    }


def _modernbert(params: ModelParams, ids: TokenIds) -> ModernBertConfig:
    return ModernBertConfig(**_values(params, ids), reference_compile=False)


def _modernbert_decoder(params: ModelParams, ids: TokenIds) -> ModernBertDecoderConfig:
    """The same, its attention causal (Weller et al. 2025, "Ettin")."""
    return ModernBertDecoderConfig(**_values(params, ids))


def _project(model: Any, hidden_TH: Tensor) -> Tensor:
    logits_TV: Tensor = model.decoder(model.head(hidden_TH))
    return logits_TV


def _project_decoder(model: Any, hidden_TH: Tensor) -> Tensor:
    logits_TV: Tensor = model.decoder(model.lm_head(hidden_TH))
    return logits_TV


def _layers(model: Any) -> nn.ModuleList:
    layers: nn.ModuleList = model.model.layers
    return layers


MODERNBERT = Family(
    {
        "mlm": Form(ModernBertForMaskedLM, _modernbert, _project),
        "clm": Form(ModernBertDecoderForCausalLM, _modernbert_decoder, _project_decoder, NO_CACHE),
    },
    _dropouts,
    layers=_layers,
)
"""Warner et al. 2024, section 2.1; reads 8,192 tokens as published (`max_position_embeddings`)."""
