"""Compressed families: DistilBERT and ALBERT."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from transformers import AlbertConfig, DistilBertConfig

from clozeline.encoder.architecture import Architecture, Dropouts, HeadShape, Initialization, LayerKind, Shape, shape_of
from clozeline.encoder.families import bert, layout
from clozeline.params.model import ModelParams

_ALBERT_EMBEDDING = 128
_DISTILBERT_EPSILON = 1e-12

_DISTILBERT_NAMES: layout.Names = {
    "embeddings.tokens": "embeddings.word_embeddings",
    "embeddings.positions": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "layers.{}.attention.query": "transformer.layer.{layer}.attention.q_lin",
    "layers.{}.attention.key": "transformer.layer.{layer}.attention.k_lin",
    "layers.{}.attention.value": "transformer.layer.{layer}.attention.v_lin",
    "layers.{}.attention.output": "transformer.layer.{layer}.attention.out_lin",
    "layers.{}.attention_norm": "transformer.layer.{layer}.sa_layer_norm",
    "layers.{}.mlp.input": "transformer.layer.{layer}.ffn.lin1",
    "layers.{}.mlp.output": "transformer.layer.{layer}.ffn.lin2",
    "layers.{}.mlp_norm": "transformer.layer.{layer}.output_layer_norm",
}
_IN_GROUP = "encoder.albert_layer_groups.{group}.albert_layers.{place}"
_ALBERT_NAMES: layout.Names = {
    **{ours: theirs for ours, theirs in bert.BERT_NAMES.items() if ours.startswith("embeddings.")},
    "embedding_projection": "encoder.embedding_hidden_mapping_in",
    "layers.{}.attention.query": f"{_IN_GROUP}.attention.query",
    "layers.{}.attention.key": f"{_IN_GROUP}.attention.key",
    "layers.{}.attention.value": f"{_IN_GROUP}.attention.value",
    "layers.{}.attention.output": f"{_IN_GROUP}.attention.dense",
    "layers.{}.attention_norm": f"{_IN_GROUP}.attention.LayerNorm",
    "layers.{}.mlp.input": f"{_IN_GROUP}.ffn",
    "layers.{}.mlp.output": f"{_IN_GROUP}.ffn_output",
    "layers.{}.mlp_norm": f"{_IN_GROUP}.full_layer_layer_norm",
}

# Sanh et al. 2019, section 2: half of BERT's layers.
_DISTILBERT_SIZES: Mapping[str, Shape] = {"base": Shape(6, 768, 12, 3072)}


def _distilbert_dropouts(params: ModelParams) -> dict[str, float]:
    return {"dropout": params.dropout, "attention_dropout": params.attention_dropout}


def _distilbert_values(params: ModelParams, ids: layout.TokenIds) -> dict[str, Any]:
    shape = shape_of(params, gated=False, published=_DISTILBERT_SIZES)
    return {
        "vocab_size": ids.vocab_size,
        "pad_token_id": ids.pad_id,
        "dim": shape.hidden_size,
        "n_layers": shape.num_hidden_layers,
        "n_heads": shape.num_attention_heads,
        "hidden_dim": shape.intermediate_size,
        "max_position_embeddings": params.max_position_embeddings,
        "activation": params.activation,
        "initializer_range": params.initializer_range,
        "tie_word_embeddings": params.tie_word_embeddings,
        **_distilbert_dropouts(params),
    }


def _distilbert_architecture(config: Any) -> Architecture:
    return Architecture(
        vocab_size=config.vocab_size,
        hidden_size=config.dim,
        num_heads=config.n_heads,
        intermediate_size=config.hidden_dim,
        layers=(LayerKind(),) * config.n_layers,
        pad_id=config.pad_token_id,
        norm_epsilon=_DISTILBERT_EPSILON,
        activation=layout.known_activation(config, "activation"),
        initialization=Initialization(config.initializer_range, config.initializer_range),
        dropouts=Dropouts(config.dropout, config.attention_dropout, mlp_output=config.dropout),
        num_positions=config.max_position_embeddings,
    )


DISTILBERT_LAYOUT = layout.Layout(
    DistilBertConfig,
    "distilbert",
    _distilbert_architecture,
    _DISTILBERT_NAMES,
    {
        "mlm": layout.HeadRow(
            lambda config: bert.vocabulary_head(config, config.activation, epsilon=_DISTILBERT_EPSILON),
            {"dense": "vocab_transform", "norm": "vocab_layer_norm", "output": "vocab_projector"},
        ),
        "feature-extraction": bert.BARE,
        "text-classification": layout.HeadRow(
            lambda config: bert.classifier(config, "relu", config.seq_classif_dropout),
            {"dense": "pre_classifier", **bert.CLASSIFIER},
        ),
        "token-classification": layout.HeadRow(lambda config: bert.labels(config, config.dropout), bert.CLASSIFIER),
        "question-answering": layout.HeadRow(
            lambda config: bert.labels(config, config.qa_dropout), bert.ANSWERER.names
        ),
    },
)


def _albert_values(params: ModelParams, ids: layout.TokenIds) -> dict[str, Any]:
    """Return embeddings 128 wide (or as wide as narrower layers), as in every published size."""
    values = bert.bert_values(params, ids)
    width = min(values["hidden_size"], _ALBERT_EMBEDDING)
    return values | {"embedding_size": width, "bos_token_id": ids.cls_id, "eos_token_id": ids.sep_id}


def _albert_architecture(config: Any) -> Architecture:
    """Return the architecture: each published layer is a group of inner layers, and layers share the groups evenly."""
    drop, num_layers, inner = config.hidden_dropout_prob, config.num_hidden_layers, config.inner_group_num
    groups = [int(number / (num_layers / config.num_hidden_groups)) for number in range(num_layers)]
    return bert.bert_architecture(
        config,
        embedding_size=config.embedding_size,
        layers=(LayerKind(),) * (num_layers * inner),
        weights_of_layer=tuple(group * inner + place for group in groups for place in range(inner)),
        dropouts=Dropouts(drop, config.attention_probs_dropout_prob, attention_output=drop),
    )


def _albert_tagger(config: Any) -> HeadShape:
    rate = config.classifier_dropout_prob
    return bert.labels(config, config.hidden_dropout_prob if rate is None else rate)


_ALBERT_POOLER: layout.Names = {"dense": "{encoder}pooler"}
ALBERT_LAYOUT = layout.Layout(
    AlbertConfig,
    "albert",
    _albert_architecture,
    _ALBERT_NAMES,
    {
        "mlm": layout.HeadRow(
            partial(bert.vocabulary_head, width="embedding_size"),
            {
                "dense": "predictions.dense",
                "norm": "predictions.LayerNorm",
                "output": "predictions.decoder",
                "output.bias": "predictions.bias",
            },
        ),
        "feature-extraction": layout.HeadRow(bert.pooler, _ALBERT_POOLER),
        "text-classification": layout.HeadRow(
            lambda config: bert.classifier(config, "tanh", config.classifier_dropout_prob),
            {**_ALBERT_POOLER, **bert.CLASSIFIER},
        ),
        "token-classification": layout.HeadRow(_albert_tagger, bert.CLASSIFIER),
        "question-answering": bert.ANSWERER,
    },
    inner_layers=lambda config: int(config.inner_group_num),
)

# Sanh et al. 2019: BERT's layers without token types, trained here as a masked language model, not distilled.
DISTILBERT = layout.Family(
    {"mlm": DistilBertConfig},
    _distilbert_values,
    _distilbert_dropouts,
    fixed=(layout.Fixed("norm_epsilon", _DISTILBERT_EPSILON, "every norm"),),
)

# Lan et al. 2019: all layers share their weights.
ALBERT = layout.Family({"mlm": AlbertConfig}, _albert_values, bert.bert_dropouts, takes_types=True)
