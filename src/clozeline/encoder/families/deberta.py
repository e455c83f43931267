"""DeBERTa: disentangled attention, with separate terms for content and position.

transformers has no fused attention for it, so it is slow for its size.
"""

from typing import Any

from transformers import DebertaV2Config

from clozeline.encoder.families.bert import bert_dropouts, bert_values
from clozeline.encoder.families.form import Family, Form, TokenIds
from clozeline.params import ModelParams

_POSITION_BUCKETS = 256
_V2_CONVOLUTION = 3
"""Width of the convolution in tokens."""


def _deberta(params: ModelParams, ids: TokenIds, **more: Any) -> DebertaV2Config:
    """Configure as published (He et al. 2021, section 2): relative positions only, in buckets that widen with distance.

    `legacy` is transformers' name for a head with BERT's parts. Its other head ties the vocabulary to a matrix outside
    the vocabulary, so that a saved model would not load.
    """
    return DebertaV2Config(
        **bert_values(params, ids),
        type_vocab_size=0,
        relative_attention=True,
        position_biased_input=False,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_buckets=min(_POSITION_BUCKETS, params.max_position_embeddings // 2),
        legacy=True,
        **more,
    )


def _deberta_v2(params: ModelParams, ids: TokenIds) -> DebertaV2Config:
    return _deberta(params, ids, conv_kernel_size=_V2_CONVOLUTION, conv_act=params.activation)


DEBERTA_V2 = Family({"mlm": Form("DebertaV2ForMaskedLM", DebertaV2Config, _deberta_v2)}, bert_dropouts)
"""He et al. 2020, with the convolution over the first layer that v2 added."""

DEBERTA_V3 = Family({"mlm": Form("DebertaV2ForMaskedLM", DebertaV2Config, _deberta)}, bert_dropouts)
"""He et al. 2021: the architecture, without the paper's objective (replaced-token detection)."""
