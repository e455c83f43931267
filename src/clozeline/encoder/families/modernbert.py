"""ModernBERT: pre-norm, rotary positions, gated MLPs, no biases, local attention in two layers of three."""

import math
from collections.abc import Mapping
from typing import Any

from transformers import ModernBertConfig, ModernBertDecoderConfig

from clozeline.encoder.architecture import Architecture, Dropouts, HeadShape, Initialization, LayerKind, Shape, shape_of
from clozeline.encoder.families import bert, layout
from clozeline.params.model import ModelParams

# Truncation in standard deviations, if the configuration names none.
_CUTOFF = 3.0

# Warner et al. 2024, table 3.
_SIZES: Mapping[str, Shape] = {"base": Shape(22, 768, 12, 1152), "large": Shape(28, 1024, 16, 2624)}

_MLP_AND_NORMS: layout.Names = {
    "embeddings.tokens": "embeddings.tok_embeddings",
    "embeddings.norm": "embeddings.norm",
    "layers.{}.attention_norm": "layers.{layer}.attn_norm",
    "layers.{}.attention.output": "layers.{layer}.attn.Wo",
    "layers.{}.mlp_norm": "layers.{layer}.mlp_norm",
    "layers.{}.mlp.input": "layers.{layer}.mlp.Wi",
    "layers.{}.mlp.output": "layers.{layer}.mlp.Wo",
    "final_norm": "final_norm",
}
_LABELS: layout.Names = {"dense": "head.dense", "norm": "head.norm", "output": "classifier"}


def _dropouts(params: ModelParams) -> dict[str, float]:
    return {
        "embedding_dropout": params.dropout,
        "mlp_dropout": params.dropout,
        "attention_dropout": params.attention_dropout,
    }


def _values(params: ModelParams, ids: layout.TokenIds) -> dict[str, Any]:
    return {
        **bert.shape_values(params, ids, shape_of(params, gated=True, published=_SIZES)),
        "cls_token_id": ids.cls_id,
        "sep_token_id": ids.sep_id,
        "bos_token_id": ids.cls_id,
        "eos_token_id": ids.sep_id,
        "hidden_activation": params.activation,
        "classifier_activation": params.activation,
        "norm_eps": params.norm_epsilon,
        **_dropouts(params),
    }


def _thetas(config: Any) -> tuple[float, float]:
    """Return the rotary bases of global and of local layers."""
    rows = [config.rope_parameters[kind] for kind in ("full_attention", "sliding_attention")]
    for row in rows:
        if row["rope_type"] != "default" or row["rope_theta"] is None:
            layout.check_covered(
                config, rope_parameters=("rope_type default and a rope_theta for both kinds of layers",)
            )
    return float(rows[0]["rope_theta"]), float(rows[1]["rope_theta"])


def _layers(config: Any, reach: int) -> tuple[LayerKind, ...]:
    layout.check_covered(config, head_dim=(config.hidden_size // config.num_attention_heads, None))
    whole, local = _thetas(config)
    kinds = {"full_attention": LayerKind(None, whole), "sliding_attention": LayerKind(reach, local)}
    if unknown := [kind for kind in config.layer_types if kind not in kinds]:
        raise layout.not_covered(config, f"`layer_types`: {unknown[0]}", f"`layer_types`: {' or '.join(kinds)}")
    return tuple(kinds[kind] for kind in config.layer_types)


def _architecture(config: Any, reach: int, **more: Any) -> Architecture:
    std = config.initializer_range
    return Architecture(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        layers=_layers(config, reach),
        pad_id=config.pad_token_id,
        norm_epsilon=config.norm_eps,
        activation=layout.known_activation(config, "hidden_activation"),
        initialization=Initialization(std, _out_std(config), _cutoff(config), zeroes_padding=False),
        dropouts=Dropouts(
            config.embedding_dropout,
            config.attention_dropout,
            attention_output=config.attention_dropout,
            mlp_inner=config.mlp_dropout,
        ),
        is_pre_norm=True,
        has_norm_bias=config.norm_bias,
        has_attention_bias=config.attention_bias,
        has_mlp_bias=config.mlp_bias,
        is_gated=True,
        **more,
    )


def _out_std(config: Any) -> float:
    return float(config.initializer_range / math.sqrt(2.0 * config.num_hidden_layers))


def _cutoff(config: Any) -> float:
    cutoff = config.initializer_cutoff_factor
    return _CUTOFF if cutoff is None else float(cutoff)


def _head(config: Any, num_outputs: int, **more: Any) -> HeadShape:
    return HeadShape(
        num_outputs,
        dense_size=config.hidden_size,
        has_dense_bias=config.classifier_bias,
        activation=layout.known_activation(config, "classifier_activation"),
        norm_epsilon=config.norm_eps,
        has_norm_bias=config.norm_bias,
        dense_std=_out_std(config),
        cutoff=_cutoff(config),
        **more,
    )


def _vocabulary(config: Any) -> HeadShape:
    return _head(
        config,
        config.vocab_size,
        has_output_bias=config.decoder_bias,
        is_tied=bool(config.tie_word_embeddings),
        output_std=_out_std(config),
    )


def _labels(config: Any, **more: Any) -> HeadShape:
    return _head(
        config, config.num_labels, dropout_after=config.classifier_dropout, output_std=config.hidden_size**-0.5, **more
    )


def _classifier(config: Any) -> HeadShape:
    layout.check_covered(config, classifier_pooling=("cls", "mean"))
    return _labels(config, pooling="first" if config.classifier_pooling == "cls" else "mean")


MODERNBERT_LAYOUT = layout.Layout(
    ModernBertConfig,
    "model",
    lambda config: _architecture(config, config.local_attention // 2, is_fused=True),
    {**_MLP_AND_NORMS, "layers.{}.attention.query_key_value": "layers.{layer}.attn.Wqkv"},
    {
        "mlm": layout.HeadRow(_vocabulary, {"dense": "head.dense", "norm": "head.norm", "output": "decoder"}),
        "feature-extraction": bert.BARE,
        "text-classification": layout.HeadRow(_classifier, _LABELS),
        "token-classification": layout.HeadRow(_labels, _LABELS),
        "question-answering": layout.HeadRow(_labels, _LABELS),
    },
)
MODERNBERT_DECODER_LAYOUT = layout.Layout(
    ModernBertDecoderConfig,
    "model",
    # The window of a decoder counts the position itself.
    lambda config: _architecture(config, config.sliding_window - 1, is_causal=True),
    {
        **_MLP_AND_NORMS,
        "layers.{}.attention.query": "layers.{layer}.attn.q_proj",
        "layers.{}.attention.key": "layers.{layer}.attn.k_proj",
        "layers.{}.attention.value": "layers.{layer}.attn.v_proj",
    },
    {
        "clm": layout.HeadRow(_vocabulary, {"dense": "lm_head.dense", "norm": "lm_head.norm", "output": "decoder"}),
        "feature-extraction": bert.BARE,
        "text-classification": layout.HeadRow(
            lambda config: _labels(config, pooling="last", has_output_bias=config.classifier_bias), _LABELS
        ),
    },
)

# Warner et al. 2024, section 2.1. The decoder has the same layers with causal attention (Weller et al. 2025, "Ettin").
#
# The published models read 8,192 tokens (`max_position_embeddings`).
MODERNBERT = layout.Family(
    {"mlm": ModernBertConfig, "clm": ModernBertDecoderConfig}, _values, _dropouts, is_pre_norm=True
)
