"""BERT and its nearest kin: post-norm layers, learned positions, plain MLPs.

Shapes: T targets, H hidden, V vocabulary.
"""

from functools import partial
from typing import Any

from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    ElectraConfig,
    ElectraForCausalLM,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    PretrainedConfig,
    RobertaConfig,
    RobertaForCausalLM,
    RobertaForMaskedLM,
    XLMRobertaConfig,
    XLMRobertaForCausalLM,
    XLMRobertaForMaskedLM,
)

from clozeline.encoder.families.form import NO_CACHE, Family, Fixed, Form, TokenIds, causal
from clozeline.encoder.sizes import shape_of
from clozeline.params import ModelParams

_SMALL_EMBEDDING = 128
GELU_IN_HEAD = (Fixed("activation", "gelu", "the head"),)


def bert_dropouts(params: ModelParams) -> dict[str, float]:
    return {"hidden_dropout_prob": params.dropout, "attention_probs_dropout_prob": params.attention_dropout}


def bert_values(params: ModelParams, ids: TokenIds) -> dict[str, Any]:
    """What BERT's configuration and those made after it call alike."""
    shape = shape_of(params, gated=False)
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
    """The table of positions is longer than what is read by the rows that no token has: 514 for 512 if [PAD] is 1."""
    return bert_values(params, ids) | {
        "max_position_embeddings": params.max_position_embeddings + ids.pad_id + 1,
        "type_vocab_size": 1,
        "bos_token_id": ids.cls_id,
        "eos_token_id": ids.sep_id,
    }


def project_cls(model: Any, hidden_TH: Tensor) -> Tensor:
    logits_TV: Tensor = model.cls(hidden_TH)
    return logits_TV


def project_lm_head(model: Any, hidden_TH: Tensor) -> Tensor:
    logits_TV: Tensor = model.lm_head(hidden_TH)
    return logits_TV


def _project_electra(model: Any, hidden_TH: Tensor) -> Tensor:
    logits_TV: Tensor = model.generator_lm_head(model.generator_predictions(hidden_TH))
    return logits_TV


def _project_detector(model: Any, hidden_TH: Tensor) -> Tensor:
    logits_T: Tensor = model.discriminator_predictions(hidden_TH)
    return logits_T


def _bert(params: ModelParams, ids: TokenIds) -> BertConfig:
    return BertConfig(**bert_values(params, ids))


def _roberta(config_class: type[PretrainedConfig], params: ModelParams, ids: TokenIds) -> PretrainedConfig:
    return config_class(**roberta_values(params, ids))


def _electra(params: ModelParams, ids: TokenIds) -> ElectraConfig:
    """Embeddings are 128 wide up to 256 hidden, as in ELECTRA-Small, and as wide as the layers above, as in Base."""
    values = bert_values(params, ids)
    hidden_size: int = values["hidden_size"]
    embedding_size = min(hidden_size, _SMALL_EMBEDDING) if hidden_size <= 2 * _SMALL_EMBEDDING else hidden_size
    return ElectraConfig(**values, embedding_size=embedding_size)


_ROBERTA = partial(_roberta, RobertaConfig)
_XLM_ROBERTA = partial(_roberta, XLMRobertaConfig)

BERT = Family(
    {
        "mlm": Form(BertForMaskedLM, _bert, project_cls),
        "clm": Form(BertLMHeadModel, causal(_bert), project_cls, NO_CACHE),
    },
    bert_dropouts,
)
"""Devlin et al. 2018."""

ROBERTA = Family(
    {
        "mlm": Form(RobertaForMaskedLM, _ROBERTA, project_lm_head),
        "clm": Form(RobertaForCausalLM, causal(_ROBERTA), project_lm_head, NO_CACHE),
    },
    bert_dropouts,
    fixed=GELU_IN_HEAD,
)
"""Liu et al. 2019."""

XLM_ROBERTA = Family(
    {
        "mlm": Form(XLMRobertaForMaskedLM, _XLM_ROBERTA, project_lm_head),
        "clm": Form(XLMRobertaForCausalLM, causal(_XLM_ROBERTA), project_lm_head, NO_CACHE),
    },
    bert_dropouts,
    fixed=GELU_IN_HEAD,
)
"""Conneau et al. 2019: RoBERTa's layers; what makes it multilingual is the text and the vocabulary."""

ELECTRA = Family(
    {
        "mlm": Form(ElectraForMaskedLM, _electra, _project_electra),
        "clm": Form(ElectraForCausalLM, causal(_electra), _project_electra, NO_CACHE),
        "rtd": Form(ElectraForPreTraining, _electra, _project_detector),
    },
    bert_dropouts,
    fixed=GELU_IN_HEAD,
)
"""Clark et al. 2020. Under `rtd` what the paper trains; else its generator alone, a model with narrow embeddings."""
