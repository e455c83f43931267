"""The encoder families, one row each. A new family is a new row.

Families in LAYOUTS run on our layers, the others on stock classes (stock.py). All are saved in the published layout,
so that trained models load anywhere. That is why none offers RMSNorm: no published encoder with a masked head has a
configurable norm. A model with a different norm would load elsewhere without an error, but compute different logits.
"""

from collections.abc import Mapping

from clozeline.encoder.families import bert, compressed, modernbert
from clozeline.encoder.families.layout import Family, HeadKind, LanguageHead, Layout, TokenIds, class_name_of

__all__ = ["FAMILIES", "LANGUAGE_HEADS", "LAYOUTS", "Family", "HeadKind", "LanguageHead", "Layout", "TokenIds"]

FAMILIES: Mapping[str, Family] = {
    "modernbert": modernbert.MODERNBERT,
    "bert": bert.BERT,
    "roberta": bert.ROBERTA,
    "xlm-roberta": bert.XLM_ROBERTA,
    "distilbert": compressed.DISTILBERT,
    "albert": compressed.ALBERT,
    "electra": bert.ELECTRA,
    "deberta-v2": bert.DEBERTA_V2,
    "deberta-v3": bert.DEBERTA_V3,
    "longformer": bert.LONGFORMER,
    "big_bird": bert.BIG_BIRD,
}

# Keyed by the class name in config.json, under `architectures`.
LANGUAGE_HEADS: Mapping[str, LanguageHead] = {
    class_name_of(form, head): head for family in FAMILIES.values() for head, form in family.forms.items()
}

# Keyed by `model_type` in config.json.
LAYOUTS: Mapping[str, Layout] = {
    layout.config_class.model_type: layout
    for layout in (
        modernbert.MODERNBERT_LAYOUT,
        modernbert.MODERNBERT_DECODER_LAYOUT,
        bert.BERT_LAYOUT,
        bert.ROBERTA_LAYOUT,
        bert.XLM_ROBERTA_LAYOUT,
        compressed.DISTILBERT_LAYOUT,
        compressed.ALBERT_LAYOUT,
        bert.ELECTRA_LAYOUT,
    )
}
