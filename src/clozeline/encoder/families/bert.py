"""BERT and its closest relatives: post-norm layers, learned positions, plain MLPs.

ELECTRA has BERT's layers with the heads of a generator, a discriminator and fine-tuned tasks.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from transformers import BertConfig, ElectraConfig, PretrainedConfig, RobertaConfig, XLMRobertaConfig

from clozeline.encoder.architecture import Architecture, Dropouts, HeadShape, Initialization, LayerKind, Shape, shape_of
from clozeline.encoder.families.layout import (
    Family,
    FamilyForm,
    Fixed,
    HeadKind,
    HeadRow,
    Layout,
    Names,
    TokenIds,
    causal,
    check_covered,
    known_activation,
)
from clozeline.params.model import ModelParams

GELU_IN_HEAD = (Fixed("activation", "gelu", "the head"),)

BERT_NAMES: Names = MappingProxyType(
    {
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
)

_SMALL_EMBEDDING = 128

_DISCRIMINATOR: Names = MappingProxyType(
    {"dense": "discriminator_predictions.dense", "output": "discriminator_predictions.dense_prediction"}
)

_ELECTRA_SIZES: Mapping[str, Shape] = MappingProxyType({"small": Shape(12, 256, 4, 1024)})
"""Clark et al. 2020, table 6; Base and Large are BERT's."""


def bert_dropouts(params: ModelParams) -> dict[str, float]:
    return {"hidden_dropout_prob": params.dropout, "attention_probs_dropout_prob": params.attention_dropout}


def bert_values(
    params: ModelParams, ids: TokenIds, sizes: Mapping[str, Shape] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the fields that BERT's configuration shares with those modelled on it."""
    shape = shape_of(params, gated=False, published=sizes)
    return {
        "vocab_size": ids.vocab_size,
        "pad_token_id": ids.pad_id,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": params.max_position_embeddings,
        "hidden_act": params.activation,
        "layer_norm_eps": params.norm_epsilon,
        "initializer_range": params.initializer_range,
        "tie_word_embeddings": params.tie_word_embeddings,
        **bert_dropouts(params),
    }


def roberta_values(params: ModelParams, ids: TokenIds) -> dict[str, Any]:
    """Return RoBERTa's fields. Its position table has rows that no token uses: 514 for 512 tokens if [PAD] is 1."""
    return bert_values(params, ids) | {
        "max_position_embeddings": params.max_position_embeddings + ids.pad_id + 1,
        "type_vocab_size": 1,
        "bos_token_id": ids.cls_id,
        "eos_token_id": ids.sep_id,
    }


def bert_architecture(config: Any, **more: Any) -> Architecture:
    check_covered(config, position_embedding_type=("absolute", None), add_cross_attention=(False, None))
    drop = config.hidden_dropout_prob
    values = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "layers": (LayerKind(),) * config.num_hidden_layers,
        "pad_id": config.pad_token_id,
        "norm_epsilon": config.layer_norm_eps,
        "activation": known_activation(config, "hidden_act"),
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


def vocabulary_head(config: Any, activation: str | None = None, width: str = "hidden_size") -> HeadShape:
    """Return a vocabulary head. `activation`: None is that of the layers. `width`: field that holds the table's."""
    return HeadShape(
        config.vocab_size,
        dense_size=getattr(config, width),
        activation=activation or config.hidden_act,
        norm_epsilon=config.layer_norm_eps,
        is_tied=bool(config.tie_word_embeddings),
        **drawn(config),
    )


def classifier_dropout(config: Any) -> float:
    rate = getattr(config, "classifier_dropout", None)
    return float(config.hidden_dropout_prob if rate is None else rate)


def _pooled_classifier(config: Any) -> HeadShape:
    """Return a classifier on top of the pooler, which BERT keeps in its encoder."""
    return HeadShape(
        config.num_labels,
        dense_size=config.hidden_size,
        activation="tanh",
        dropout_after=classifier_dropout(config),
        pooling="first",
        **drawn(config),
    )


def dense_classifier(config: Any, activation: str) -> HeadShape:
    rate = classifier_dropout(config)
    return HeadShape(
        config.num_labels,
        dense_size=config.hidden_size,
        activation=activation,
        dropout_before=rate,
        dropout_after=rate,
        pooling="first",
        **drawn(config),
    )


def tagger(config: Any) -> HeadShape:
    return HeadShape(config.num_labels, dropout_after=classifier_dropout(config), **drawn(config))


def answerer(config: Any) -> HeadShape:
    return HeadShape(config.num_labels, **drawn(config))


def pooler(config: Any) -> HeadShape:
    """Return the pooler. Nothing here uses it, but stock transformers would draw a random one if it were missing."""
    return HeadShape(0, dense_size=config.hidden_size, activation="tanh", **drawn(config))


def nothing(config: Any) -> HeadShape:
    return HeadShape(0)


def _bert_heads() -> Mapping[HeadKind, HeadRow]:
    vocabulary = {
        "dense": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
        "output": "cls.predictions.decoder",
        "output.bias": "cls.predictions.bias",
    }
    pooled = {"dense": "{encoder}pooler.dense"}
    return {
        "mlm": HeadRow("BertForMaskedLM", vocabulary_head, vocabulary),
        "clm": HeadRow("BertLMHeadModel", vocabulary_head, vocabulary),
        "feature-extraction": HeadRow("BertModel", pooler, pooled),
        "text-classification": HeadRow(
            "BertForSequenceClassification", _pooled_classifier, pooled | {"output": "classifier"}
        ),
        "token-classification": HeadRow("BertForTokenClassification", tagger, {"output": "classifier"}),
        "question-answering": HeadRow("BertForQuestionAnswering", answerer, {"output": "qa_outputs"}),
    }


def _roberta_heads(name: str) -> Mapping[HeadKind, HeadRow]:
    head = partial(vocabulary_head, activation="gelu")
    vocabulary = {
        "dense": "lm_head.dense",
        "norm": "lm_head.layer_norm",
        "output": "lm_head.decoder",
        "output.bias": "lm_head.bias",
    }
    return {
        "mlm": HeadRow(f"{name}ForMaskedLM", head, vocabulary),
        "clm": HeadRow(f"{name}ForCausalLM", head, vocabulary),
        "feature-extraction": HeadRow(f"{name}Model", pooler, {"dense": "{encoder}pooler.dense"}),
        "text-classification": HeadRow(
            f"{name}ForSequenceClassification",
            partial(dense_classifier, activation="tanh"),
            {"dense": "classifier.dense", "output": "classifier.out_proj"},
        ),
        "token-classification": HeadRow(f"{name}ForTokenClassification", tagger, {"output": "classifier"}),
        "question-answering": HeadRow(f"{name}ForQuestionAnswering", answerer, {"output": "qa_outputs"}),
    }


BERT_LAYOUT = Layout(BertConfig, "bert", bert_architecture, BERT_NAMES, _bert_heads())
ROBERTA_LAYOUT = Layout(RobertaConfig, "roberta", _roberta_architecture, BERT_NAMES, _roberta_heads("Roberta"))
XLM_ROBERTA_LAYOUT = Layout(
    XLMRobertaConfig, "roberta", _roberta_architecture, BERT_NAMES, _roberta_heads("XLMRoberta")
)


def _bert(params: ModelParams, ids: TokenIds) -> BertConfig:
    return BertConfig(**bert_values(params, ids))


def _roberta(config_class: type[PretrainedConfig], params: ModelParams, ids: TokenIds) -> PretrainedConfig:
    return config_class(**roberta_values(params, ids))


_ROBERTA = partial(_roberta, RobertaConfig)
_XLM_ROBERTA = partial(_roberta, XLMRobertaConfig)

BERT = Family(
    {
        "mlm": FamilyForm("BertForMaskedLM", BertConfig, _bert),
        "clm": FamilyForm("BertLMHeadModel", BertConfig, causal(_bert)),
    },
    bert_dropouts,
)
"""Devlin et al. 2018."""

ROBERTA = Family(
    {
        "mlm": FamilyForm("RobertaForMaskedLM", RobertaConfig, _ROBERTA),
        "clm": FamilyForm("RobertaForCausalLM", RobertaConfig, causal(_ROBERTA)),
    },
    bert_dropouts,
    fixed=GELU_IN_HEAD,
)
"""Liu et al. 2019."""

XLM_ROBERTA = Family(
    {
        "mlm": FamilyForm("XLMRobertaForMaskedLM", XLMRobertaConfig, _XLM_ROBERTA),
        "clm": FamilyForm("XLMRobertaForCausalLM", XLMRobertaConfig, causal(_XLM_ROBERTA)),
    },
    bert_dropouts,
    fixed=GELU_IN_HEAD,
)
"""Conneau et al. 2019: RoBERTa's layers; what makes it multilingual is the text and the vocabulary."""


def _electra_architecture(config: Any) -> Architecture:
    is_narrow = config.embedding_size != config.hidden_size
    return bert_architecture(config, embedding_size=config.embedding_size if is_narrow else None)


def _discriminator(config: Any) -> HeadShape:
    return HeadShape(1, dense_size=config.hidden_size, activation=config.hidden_act, **drawn(config))


def _electra_heads() -> Mapping[HeadKind, HeadRow]:
    head = partial(vocabulary_head, activation="gelu", width="embedding_size")
    vocabulary = {
        "dense": "generator_predictions.dense",
        "norm": "generator_predictions.LayerNorm",
        "output": "generator_lm_head",
    }
    return {
        "mlm": HeadRow("ElectraForMaskedLM", head, vocabulary),
        "clm": HeadRow("ElectraForCausalLM", head, vocabulary),
        "rtd": HeadRow("ElectraForPreTraining", _discriminator, _DISCRIMINATOR),
        "feature-extraction": HeadRow("ElectraModel", nothing),
        "text-classification": HeadRow(
            "ElectraForSequenceClassification",
            partial(dense_classifier, activation="gelu"),
            {"dense": "classifier.dense", "output": "classifier.out_proj"},
        ),
        "token-classification": HeadRow("ElectraForTokenClassification", tagger, {"output": "classifier"}),
        "question-answering": HeadRow("ElectraForQuestionAnswering", answerer, {"output": "qa_outputs"}),
    }


ELECTRA_LAYOUT = Layout(ElectraConfig, "electra", _electra_architecture, BERT_NAMES, _electra_heads())


def _electra(params: ModelParams, ids: TokenIds) -> ElectraConfig:
    """Configure embeddings 128 wide up to a hidden size of 256 (ELECTRA-Small), then as wide as the layers (Base)."""
    values = bert_values(params, ids, _ELECTRA_SIZES)
    hidden_size: int = values["hidden_size"]
    embedding_size = min(hidden_size, _SMALL_EMBEDDING) if hidden_size <= 2 * _SMALL_EMBEDDING else hidden_size
    return ElectraConfig(**values, embedding_size=embedding_size)


ELECTRA = Family(
    {
        "mlm": FamilyForm("ElectraForMaskedLM", ElectraConfig, _electra),
        "clm": FamilyForm("ElectraForCausalLM", ElectraConfig, causal(_electra)),
        "rtd": FamilyForm("ElectraForPreTraining", ElectraConfig, _electra),
    },
    bert_dropouts,
    fixed=GELU_IN_HEAD,
)
"""Clark et al. 2020. `rtd` trains generator and discriminator, as in the paper; the other objectives train the
generator alone, a model with narrow embeddings.
"""
