"""The encoder families: a row each. A new family is a new row.

Shapes: N target positions, H hidden, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor
from transformers import BertConfig, ModernBertConfig, PretrainedConfig, PreTrainedModel

from clozeline.params import ModelParams


@dataclass(frozen=True)
class TokenIds:
    """The ids a model's configuration names, and how many there are."""

    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int


@dataclass(frozen=True)
class Family:
    """What differs between families: how to configure one, and where its vocabulary head is."""

    configure: Callable[[ModelParams, TokenIds], PretrainedConfig]
    project: Callable[[PreTrainedModel, Tensor], Tensor]
    """`hidden_NH` → `logits_NV`, so that only targets are projected to the vocabulary."""


def _modernbert(params: ModelParams, ids: TokenIds) -> PretrainedConfig:
    """Pre-norm, rotary positions, gated MLP, no biases (Warner et al. 2024, section 2.1)."""
    return ModernBertConfig(
        **_shared(params, ids),
        cls_token_id=ids.cls_id,
        sep_token_id=ids.sep_id,
        bos_token_id=ids.cls_id,
        eos_token_id=ids.sep_id,
        embedding_dropout=params.dropout,
        mlp_dropout=params.dropout,
        attention_dropout=params.dropout,
        reference_compile=False,
    )


def _bert(params: ModelParams, ids: TokenIds) -> PretrainedConfig:
    """Post-norm, learned positions (Devlin et al. 2018)."""
    return BertConfig(
        **_shared(params, ids),
        hidden_dropout_prob=params.dropout,
        attention_probs_dropout_prob=params.dropout,
    )


def _shared(params: ModelParams, ids: TokenIds) -> dict[str, Any]:
    return {
        "vocab_size": ids.vocab_size,
        "pad_token_id": ids.pad_id,
        "hidden_size": params.hidden_size,
        "num_hidden_layers": params.num_hidden_layers,
        "num_attention_heads": params.num_attention_heads,
        "intermediate_size": params.intermediate_size,
        "max_position_embeddings": params.max_position_embeddings,
    }


def _project_modernbert(model: Any, hidden_NH: Tensor) -> Tensor:
    logits_NV: Tensor = model.decoder(model.head(hidden_NH))
    return logits_NV


def _project_bert(model: Any, hidden_NH: Tensor) -> Tensor:
    logits_NV: Tensor = model.cls(hidden_NH)
    return logits_NV


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "modernbert": Family(_modernbert, _project_modernbert),
        "bert": Family(_bert, _project_bert),
    }
)
"""Keyed by `model_type`, the name transformers writes into config.json."""
