"""Older families for long texts. The newer way is ModernBERT with a larger `max_position_embeddings`."""

from transformers import BigBirdConfig, LongformerConfig

from clozeline.encoder.families.bert import GELU_IN_HEAD, bert_dropouts, bert_values, roberta_values
from clozeline.encoder.families.form import Family, Form, TokenIds, causal
from clozeline.params import ModelParams

_WINDOW = 128
"""Tokens. Published: 512; but rows are padded to a multiple of it, and most are shorter."""


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
"""Beltagy et al. 2020: each token sees a window; no token is global in pre-training.

No ONNX: rows are padded to whole windows in Python, by the length of the text, which torch.export cannot follow.
"""

BIG_BIRD = Family(
    {
        "mlm": Form("BigBirdForMaskedLM", BigBirdConfig, _big_bird),
        "clm": Form("BigBirdForCausalLM", BigBirdConfig, causal(_big_bird)),
    },
    bert_dropouts,
)
"""Zaheer et al. 2020, trained with full attention.

transformers' block-sparse attention is no function of a row and the weights: it looks at random blocks in training and
at others in evaluation, and is left for good at the first batch of short rows. The weights are the same for both: set
`attention_type` to `block_sparse` in the saved config.json to read long texts with them.
"""
