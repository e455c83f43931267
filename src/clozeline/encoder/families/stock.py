"""Families on stock classes: DeBERTa, and older families for long texts.

DeBERTa has disentangled attention, with separate terms for content and position. transformers has no fused attention
for it, so it is slow for its size. For long texts, ModernBERT with a larger `max_position_embeddings` is the newer way.
"""

from typing import Any

from transformers import BigBirdConfig, DebertaV2Config, LongformerConfig

from clozeline.encoder.families.bert import GELU_IN_HEAD, bert_dropouts, bert_values, roberta_values
from clozeline.encoder.families.layout import Family, FamilyForm, TokenIds, causal
from clozeline.params.model import ModelParams

_POSITION_BUCKETS = 256
_V2_CONVOLUTION = 3
"""Width of the convolution in tokens."""

_WINDOW = 128
"""Attention window in tokens. Published: 512; but rows are padded to a multiple of it, and most are shorter."""


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


DEBERTA_V2 = Family({"mlm": FamilyForm("DebertaV2ForMaskedLM", DebertaV2Config, _deberta_v2)}, bert_dropouts)
"""He et al. 2020, with the convolution over the first layer that v2 added."""

DEBERTA_V3 = Family({"mlm": FamilyForm("DebertaV2ForMaskedLM", DebertaV2Config, _deberta)}, bert_dropouts)
"""He et al. 2021: the architecture, without the paper's objective (replaced-token detection)."""


def _longformer(params: ModelParams, ids: TokenIds) -> LongformerConfig:
    return LongformerConfig(**roberta_values(params, ids), sep_token_id=ids.sep_id, attention_window=_WINDOW)


def _big_bird(params: ModelParams, ids: TokenIds) -> BigBirdConfig:
    return BigBirdConfig(
        **bert_values(params, ids),
        bos_token_id=ids.cls_id,
        eos_token_id=ids.sep_id,
        sep_token_id=ids.sep_id,
        attention_type="original_full",
    )


LONGFORMER = Family(
    {"mlm": FamilyForm("LongformerForMaskedLM", LongformerConfig, _longformer)},
    bert_dropouts,
    fixed=GELU_IN_HEAD,
    exports=False,
)
"""Beltagy et al. 2020: each token sees a window; pre-training uses no global tokens.

No ONNX export: Python code pads rows to whole windows by the length of the text, which torch.export cannot follow.
"""

BIG_BIRD = Family(
    {
        "mlm": FamilyForm("BigBirdForMaskedLM", BigBirdConfig, _big_bird),
        "clm": FamilyForm("BigBirdForCausalLM", BigBirdConfig, causal(_big_bird)),
    },
    bert_dropouts,
)
"""Zaheer et al. 2020, trained with full attention.

transformers' block-sparse attention is not a function of a row and the weights: it picks random blocks in training,
others in evaluation, and switches itself off for good at the first batch of short rows. Both kinds of attention use the
same weights: set `attention_type` to `block_sparse` in the saved config.json to read long texts with them.
"""
