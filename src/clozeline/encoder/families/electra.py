"""ELECTRA: BERT's layers with the heads of a generator, a discriminator and fine-tuned tasks."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from transformers import ElectraConfig

from clozeline.encoder.architecture import Architecture, HeadShape
from clozeline.encoder.families.bert import (
    BERT_NAMES,
    GELU_IN_HEAD,
    answerer,
    bert_architecture,
    bert_dropouts,
    bert_values,
    dense_classifier,
    drawn,
    nothing,
    tagger,
    vocabulary_head,
)
from clozeline.encoder.families.form import Family, Form, TokenIds, causal
from clozeline.encoder.families.layout import HeadKind, HeadRow, Layout, Names
from clozeline.encoder.sizes import Shape
from clozeline.params import ModelParams

_SMALL_EMBEDDING = 128


def _electra_architecture(config: Any) -> Architecture:
    is_narrow = config.embedding_size != config.hidden_size
    return bert_architecture(config, embedding_size=config.embedding_size if is_narrow else None)


_DISCRIMINATOR: Names = MappingProxyType(
    {"dense": "discriminator_predictions.dense", "output": "discriminator_predictions.dense_prediction"}
)


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


_ELECTRA_SIZES: Mapping[str, Shape] = MappingProxyType({"small": Shape(12, 256, 4, 1024)})
"""Clark et al. 2020, table 6; Base and Large are BERT's."""


def _electra(params: ModelParams, ids: TokenIds) -> ElectraConfig:
    """Configure embeddings 128 wide up to a hidden size of 256 (ELECTRA-Small), then as wide as the layers (Base)."""
    values = bert_values(params, ids, _ELECTRA_SIZES)
    hidden_size: int = values["hidden_size"]
    embedding_size = min(hidden_size, _SMALL_EMBEDDING) if hidden_size <= 2 * _SMALL_EMBEDDING else hidden_size
    return ElectraConfig(**values, embedding_size=embedding_size)


ELECTRA = Family(
    {
        "mlm": Form("ElectraForMaskedLM", ElectraConfig, _electra),
        "clm": Form("ElectraForCausalLM", ElectraConfig, causal(_electra)),
        "rtd": Form("ElectraForPreTraining", ElectraConfig, _electra),
    },
    bert_dropouts,
    fixed=GELU_IN_HEAD,
)
"""Clark et al. 2020. `rtd` trains generator and discriminator, as in the paper; the other objectives train the
generator alone, a model with narrow embeddings.
"""
