"""Families that are small on purpose: DistilBERT and ALBERT.

Shapes: T targets, H hidden, V vocabulary.
"""

from typing import Any

from torch import Tensor
from transformers import AlbertConfig, AlbertForMaskedLM, DistilBertConfig, DistilBertForMaskedLM

from clozeline.encoder.families.bert import bert_dropouts, bert_values
from clozeline.encoder.families.form import Family, Fixed, Form, TokenIds
from clozeline.encoder.sizes import shape_of
from clozeline.params import ModelParams

_ALBERT_EMBEDDING = 128


def _distilbert_dropouts(params: ModelParams) -> dict[str, float]:
    return {"dropout": params.dropout, "attention_dropout": params.attention_dropout}


def _distilbert(params: ModelParams, ids: TokenIds) -> DistilBertConfig:
    shape = shape_of(params, gated=False)
    return DistilBertConfig(
        vocab_size=ids.vocab_size,
        pad_token_id=ids.pad_id,
        dim=shape.hidden_size,
        n_layers=shape.num_hidden_layers,
        n_heads=shape.num_attention_heads,
        hidden_dim=shape.intermediate_size,
        max_position_embeddings=params.max_position_embeddings,
        activation=params.activation,
        initializer_range=params.initializer_range,
        tie_word_embeddings=params.tie_word_embeddings,
        **_distilbert_dropouts(params),
    )


def _project_distilbert(model: Any, hidden_TH: Tensor) -> Tensor:
    transformed_TH = model.vocab_layer_norm(model.activation(model.vocab_transform(hidden_TH)))
    logits_TV: Tensor = model.vocab_projector(transformed_TH)
    return logits_TV


def _albert(params: ModelParams, ids: TokenIds) -> AlbertConfig:
    """Embeddings are 128 wide whatever the layers are, as in every published size."""
    values = bert_values(params, ids)
    return AlbertConfig(
        **values,
        embedding_size=min(values["hidden_size"], _ALBERT_EMBEDDING),
        bos_token_id=ids.cls_id,
        eos_token_id=ids.sep_id,
    )


def _project_albert(model: Any, hidden_TH: Tensor) -> Tensor:
    logits_TV: Tensor = model.predictions(hidden_TH)
    return logits_TV


DISTILBERT = Family(
    {"mlm": Form(DistilBertForMaskedLM, _distilbert, _project_distilbert)},
    _distilbert_dropouts,
    fixed=(Fixed("norm_epsilon", 1e-12, "every norm"),),
)
"""Sanh et al. 2019: BERT's layers without token types, trained here as a masked language model, not distilled."""

ALBERT = Family({"mlm": Form(AlbertForMaskedLM, _albert, _project_albert)}, bert_dropouts)
"""Lan et al. 2019: every layer has the same weights."""
