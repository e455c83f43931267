"""Older families for long texts. ModernBERT with a larger `max_position_embeddings` is the newer way."""

from transformers import BigBirdConfig, LongformerConfig

from clozeline.encoder.families.bert import GELU_IN_HEAD, bert_dropouts, bert_values, roberta_values
from clozeline.encoder.families.form import Family, Form, TokenIds, causal
from clozeline.params import ModelParams

_WINDOW = 128
"""Attention window in tokens. Published: 512; but rows are padded to a multiple of it, and most are shorter."""


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
    {"mlm": Form("LongformerForMaskedLM", LongformerConfig, _longformer)},
    bert_dropouts,
    fixed=GELU_IN_HEAD,
    exports=False,
)
"""Beltagy et al. 2020: each token sees a window; pre-training uses no global tokens.

No ONNX export: Python code pads rows to whole windows by the length of the text, which torch.export cannot follow.
"""

BIG_BIRD = Family(
    {
        "mlm": Form("BigBirdForMaskedLM", BigBirdConfig, _big_bird),
        "clm": Form("BigBirdForCausalLM", BigBirdConfig, causal(_big_bird)),
    },
    bert_dropouts,
)
"""Zaheer et al. 2020, trained with full attention.

transformers' block-sparse attention is not a function of a row and the weights: it picks random blocks in training,
others in evaluation, and switches itself off for good at the first batch of short rows. Both kinds of attention use the
same weights: set `attention_type` to `block_sparse` in the saved config.json to read long texts with them.
"""
