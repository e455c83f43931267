"""BERT and its closest relatives: post-norm layers, learned positions, plain MLPs.

ELECTRA has BERT's layers with the heads of a generator, a discriminator and fine-tuned tasks.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from transformers import (
    BertConfig,
    BigBirdConfig,
    DebertaV2Config,
    ElectraConfig,
    LongformerConfig,
    RobertaConfig,
    XLMRobertaConfig,
)

from clozeline.encoder.architecture import Architecture, Dropouts, HeadShape, Initialization, LayerKind, Shape, shape_of
from clozeline.encoder.families import layout
from clozeline.params.model import ModelParams

GELU_IN_HEAD = (layout.Fixed("activation", "gelu", "the head"),)

BERT_NAMES: layout.Names = {
    "embeddings.tokens": "embeddings.word_embeddings",
    "embeddings.positions": "embeddings.position_embeddings",
    "embeddings.types": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "embedding_projection": "embeddings_project",
    "layers.{}.attention.query": "encoder.layer.{layer}.attention.self.query",
    "layers.{}.attention.key": "encoder.layer.{layer}.attention.self.key",
    "layers.{}.attention.value": "encoder.layer.{layer}.attention.self.value",
    "layers.{}.attention.output": "encoder.layer.{layer}.attention.output.dense",
    "layers.{}.attention_norm": "encoder.layer.{layer}.attention.output.LayerNorm",
    "layers.{}.mlp.input": "encoder.layer.{layer}.intermediate.dense",
    "layers.{}.mlp.output": "encoder.layer.{layer}.output.dense",
    "layers.{}.mlp_norm": "encoder.layer.{layer}.output.LayerNorm",
}

_SMALL_EMBEDDING = 128

# Clark et al. 2020, table 6; Base and Large are BERT's.
_ELECTRA_SIZES: Mapping[str, Shape] = {"small": Shape(12, 256, 4, 1024)}


def bert_dropouts(params: ModelParams) -> dict[str, float]:
    return {"hidden_dropout_prob": params.dropout, "attention_probs_dropout_prob": params.attention_dropout}


def shape_values(params: ModelParams, ids: layout.TokenIds, shape: Shape) -> dict[str, Any]:
    """Return the fields that most configurations share, whatever their layers."""
    return {
        "vocab_size": ids.vocab_size,
        "pad_token_id": ids.pad_id,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": params.max_position_embeddings,
        "initializer_range": params.initializer_range,
        "tie_word_embeddings": params.tie_word_embeddings,
    }


def bert_values(
    params: ModelParams, ids: layout.TokenIds, sizes: Mapping[str, Shape] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the fields that BERT's configuration shares with those modelled on it."""
    return {
        **shape_values(params, ids, shape_of(params, gated=False, published=sizes)),
        "hidden_act": params.activation,
        "layer_norm_eps": params.norm_epsilon,
        **bert_dropouts(params),
    }


def roberta_values(params: ModelParams, ids: layout.TokenIds) -> dict[str, Any]:
    """Return RoBERTa's fields. Its position table has rows that no token uses: 514 for 512 tokens if [PAD] is 1."""
    return bert_values(params, ids) | {
        "max_position_embeddings": params.max_position_embeddings + ids.pad_id + 1,
        "type_vocab_size": 1,
        "bos_token_id": ids.cls_id,
        "eos_token_id": ids.sep_id,
    }


def bert_architecture(config: Any, **more: Any) -> Architecture:
    layout.check_covered(config, position_embedding_type=("absolute", None), add_cross_attention=(False, None))
    drop = config.hidden_dropout_prob
    values = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "layers": (LayerKind(),) * config.num_hidden_layers,
        "pad_id": config.pad_token_id,
        "norm_epsilon": config.layer_norm_eps,
        "activation": layout.known_activation(config, "hidden_act"),
        "initialization": Initialization(config.initializer_range, config.initializer_range),
        "dropouts": Dropouts(drop, config.attention_probs_dropout_prob, attention_output=drop, mlp_output=drop),
        "num_positions": config.max_position_embeddings,
        "num_types": config.type_vocab_size,
        "is_causal": bool(getattr(config, "is_decoder", False)),
    }
    return Architecture(**(values | more))


def _roberta_architecture(config: Any) -> Architecture:
    return bert_architecture(config, counts_from_pad=True)


def drawn(config: Any) -> dict[str, Any]:
    """Return how the heads of BERT and its relatives are initialized."""
    return {"dense_std": config.initializer_range, "output_std": config.initializer_range}


def vocabulary_head(
    config: Any, activation: str | None = None, width: str = "hidden_size", epsilon: float | None = None
) -> HeadShape:
    """Return a vocabulary head. `activation`, `epsilon`: None are those of the layers. `width`: field that holds the
    table's.
    """
    return HeadShape(
        config.vocab_size,
        dense_size=getattr(config, width),
        activation=activation or config.hidden_act,
        norm_epsilon=config.layer_norm_eps if epsilon is None else epsilon,
        is_tied=bool(config.tie_word_embeddings),
        **drawn(config),
    )


def classifier_dropout(config: Any) -> float:
    rate = getattr(config, "classifier_dropout", None)
    return float(config.hidden_dropout_prob if rate is None else rate)


def labels(config: Any, rate: float = 0.0, **more: Any) -> HeadShape:
    """Return a head with an output for each label, after dropout of `rate`."""
    return HeadShape(config.num_labels, dropout_after=rate, **drawn(config), **more)


def classifier(config: Any, activation: str, rate: float, rate_before: float = 0.0) -> HeadShape:
    """Return a classifier of a text: a dense layer on its first token, with dropout around it."""
    dense: dict[str, Any] = {"dense_size": config.hidden_size, "activation": activation, "pooling": "first"}
    return labels(config, rate, dropout_before=rate_before, **dense)


def dense_classifier(config: Any, activation: str) -> HeadShape:
    rate = classifier_dropout(config)
    return classifier(config, activation, rate, rate_before=rate)


def tagger(config: Any) -> HeadShape:
    return labels(config, classifier_dropout(config))


def pooler(config: Any) -> HeadShape:
    """Return the pooler. Nothing here uses it, but stock transformers would draw a random one if it were missing."""
    return HeadShape(0, dense_size=config.hidden_size, activation="tanh", **drawn(config))


CLASSIFIER: layout.Names = {"output": "classifier"}
ANSWERER = layout.HeadRow(labels, MappingProxyType({"output": "qa_outputs"}))
# An encoder without pooler.
BARE = layout.HeadRow(lambda config: HeadShape(0))
_POOLER: layout.Names = {"dense": "{encoder}pooler.dense"}
_TASKS: Mapping[layout.HeadKind, layout.HeadRow] = {
    "feature-extraction": layout.HeadRow(pooler, _POOLER),
    "token-classification": layout.HeadRow(tagger, CLASSIFIER),
    "question-answering": ANSWERER,
}
_BERT_VOCABULARY = layout.HeadRow(
    vocabulary_head,
    {
        "dense": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
        "output": "cls.predictions.decoder",
        "output.bias": "cls.predictions.bias",
    },
)
_ROBERTA_VOCABULARY = layout.HeadRow(
    partial(vocabulary_head, activation="gelu"),
    {
        "dense": "lm_head.dense",
        "norm": "lm_head.layer_norm",
        "output": "lm_head.decoder",
        "output.bias": "lm_head.bias",
    },
)
_DENSE_CLASSIFIER: layout.Names = {"dense": "classifier.dense", "output": "classifier.out_proj"}
_ROBERTA_HEADS: Mapping[layout.HeadKind, layout.HeadRow] = {
    "mlm": _ROBERTA_VOCABULARY,
    "clm": _ROBERTA_VOCABULARY,
    **_TASKS,
    "text-classification": layout.HeadRow(partial(dense_classifier, activation="tanh"), _DENSE_CLASSIFIER),
}

BERT_LAYOUT = layout.Layout(
    BertConfig,
    "bert",
    bert_architecture,
    BERT_NAMES,
    {
        "mlm": _BERT_VOCABULARY,
        "clm": _BERT_VOCABULARY,
        **_TASKS,
        # On top of the pooler, which BERT keeps in its encoder.
        "text-classification": layout.HeadRow(
            lambda config: classifier(config, "tanh", classifier_dropout(config)), {**_POOLER, **CLASSIFIER}
        ),
    },
)
ROBERTA_LAYOUT = layout.Layout(RobertaConfig, "roberta", _roberta_architecture, BERT_NAMES, _ROBERTA_HEADS)
XLM_ROBERTA_LAYOUT = replace(ROBERTA_LAYOUT, config_class=XLMRobertaConfig)


# Devlin et al. 2018.
BERT = layout.Family({"mlm": BertConfig, "clm": BertConfig}, bert_values, bert_dropouts, takes_types=True)

# Liu et al. 2019.
ROBERTA = layout.Family({"mlm": RobertaConfig, "clm": RobertaConfig}, roberta_values, bert_dropouts, fixed=GELU_IN_HEAD)

# Conneau et al. 2019: RoBERTa's layers; what makes it multilingual is the text and the vocabulary.
XLM_ROBERTA = replace(ROBERTA, forms={"mlm": XLMRobertaConfig, "clm": XLMRobertaConfig})


def _electra_architecture(config: Any) -> Architecture:
    is_narrow = config.embedding_size != config.hidden_size
    return bert_architecture(config, embedding_size=config.embedding_size if is_narrow else None)


_ELECTRA_VOCABULARY = layout.HeadRow(
    partial(vocabulary_head, activation="gelu", width="embedding_size"),
    {"dense": "generator_predictions.dense", "norm": "generator_predictions.LayerNorm", "output": "generator_lm_head"},
)
ELECTRA_LAYOUT = layout.Layout(
    ElectraConfig,
    "electra",
    _electra_architecture,
    BERT_NAMES,
    {
        "mlm": _ELECTRA_VOCABULARY,
        "clm": _ELECTRA_VOCABULARY,
        "rtd": layout.HeadRow(
            lambda config: HeadShape(1, dense_size=config.hidden_size, activation=config.hidden_act, **drawn(config)),
            {"dense": "discriminator_predictions.dense", "output": "discriminator_predictions.dense_prediction"},
        ),
        **_TASKS,
        "feature-extraction": BARE,
        "text-classification": layout.HeadRow(partial(dense_classifier, activation="gelu"), _DENSE_CLASSIFIER),
    },
)


def _electra_values(params: ModelParams, ids: layout.TokenIds) -> dict[str, Any]:
    """Return embeddings 128 wide up to a hidden size of 256 (ELECTRA-Small), then as wide as the layers (Base)."""
    values = bert_values(params, ids, _ELECTRA_SIZES)
    hidden_size: int = values["hidden_size"]
    is_small = hidden_size <= 2 * _SMALL_EMBEDDING
    return values | {"embedding_size": min(hidden_size, _SMALL_EMBEDDING) if is_small else hidden_size}


# Clark et al. 2020. `rtd` trains generator and discriminator, as in the paper; the other objectives train the generator
# alone, a model with narrow embeddings.
ELECTRA = layout.Family(
    {"mlm": ElectraConfig, "clm": ElectraConfig, "rtd": ElectraConfig},
    _electra_values,
    bert_dropouts,
    fixed=GELU_IN_HEAD,
    takes_types=True,
)


_POSITION_BUCKETS = 256
# Width of the convolution in tokens.
_V2_CONVOLUTION = 3

# Attention window in tokens. Published: 512; but rows are padded to a multiple of it, and most are shorter.
_WINDOW = 128


def _deberta(params: ModelParams, ids: layout.TokenIds) -> dict[str, Any]:
    """Return the fields as published (He et al. 2021, section 2): relative positions only, in buckets that widen with
    distance.

    `legacy` is transformers' name for a head with BERT's parts. Its other head ties the vocabulary to a matrix outside
    the vocabulary, so that a saved model would not load.
    """
    return bert_values(params, ids) | {
        "type_vocab_size": 0,
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_buckets": min(_POSITION_BUCKETS, params.max_position_embeddings // 2),
        "legacy": True,
    }


def _deberta_v2(params: ModelParams, ids: layout.TokenIds) -> dict[str, Any]:
    return _deberta(params, ids) | {"conv_kernel_size": _V2_CONVOLUTION, "conv_act": params.activation}


# He et al. 2020, with the convolution over the first layer that v2 added.
DEBERTA_V2 = layout.Family({"mlm": DebertaV2Config}, _deberta_v2, bert_dropouts, takes_types=True)

# He et al. 2021: the architecture, without the paper's objective (replaced-token detection).
DEBERTA_V3 = layout.Family({"mlm": DebertaV2Config}, _deberta, bert_dropouts, takes_types=True)


def _longformer(params: ModelParams, ids: layout.TokenIds) -> dict[str, Any]:
    return roberta_values(params, ids) | {"sep_token_id": ids.sep_id, "attention_window": _WINDOW}


def _big_bird(params: ModelParams, ids: layout.TokenIds) -> dict[str, Any]:
    special = {"bos_token_id": ids.cls_id, "eos_token_id": ids.sep_id, "sep_token_id": ids.sep_id}
    return bert_values(params, ids) | special | {"attention_type": "original_full"}


# Beltagy et al. 2020: each token sees a window; pre-training uses no global tokens.
LONGFORMER = layout.Family({"mlm": LongformerConfig}, _longformer, bert_dropouts, fixed=GELU_IN_HEAD)

# Zaheer et al. 2020, trained with full attention.
#
# transformers' block-sparse attention is not a function of a row and the weights: it picks random blocks in training,
# others in evaluation, and switches itself off for good at the first batch of short rows. Both kinds of attention use
# the same weights: set `attention_type` to `block_sparse` in the saved config.json to read long texts with them.
BIG_BIRD = layout.Family({"mlm": BigBirdConfig, "clm": BigBirdConfig}, _big_bird, bert_dropouts)
