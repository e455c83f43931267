"""The encoder families, one row each. A new family is a new row.

Families in LAYOUTS run on our layers, the others on stock classes (stock.py). All are saved in the published layout,
so that trained models load anywhere. That is why none offers RMSNorm: no published encoder with a masked head has a
configurable norm. A model with a different norm would load elsewhere without an error, but compute different logits.
"""

from collections.abc import Mapping
from types import MappingProxyType

from clozeline.encoder.families.bert import (
    BERT,
    BERT_LAYOUT,
    BIG_BIRD,
    DEBERTA_V2,
    DEBERTA_V3,
    ELECTRA,
    ELECTRA_LAYOUT,
    LONGFORMER,
    ROBERTA,
    ROBERTA_LAYOUT,
    XLM_ROBERTA,
    XLM_ROBERTA_LAYOUT,
)
from clozeline.encoder.families.compressed import ALBERT, ALBERT_LAYOUT, DISTILBERT, DISTILBERT_LAYOUT
from clozeline.encoder.families.layout import Family, HeadKind, LanguageHead, Layout, TokenIds, class_name_of
from clozeline.encoder.families.modernbert import MODERNBERT, MODERNBERT_DECODER_LAYOUT, MODERNBERT_LAYOUT

__all__ = ["FAMILIES", "LANGUAGE_HEADS", "LAYOUTS", "Family", "HeadKind", "LanguageHead", "Layout", "TokenIds"]

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "modernbert": MODERNBERT,
        "bert": BERT,
        "roberta": ROBERTA,
        "xlm-roberta": XLM_ROBERTA,
        "distilbert": DISTILBERT,
        "albert": ALBERT,
        "electra": ELECTRA,
        "deberta-v2": DEBERTA_V2,
        "deberta-v3": DEBERTA_V3,
        "longformer": LONGFORMER,
        "big_bird": BIG_BIRD,
    }
)

LANGUAGE_HEADS: Mapping[str, LanguageHead] = MappingProxyType(
    {
        class_name_of(form.config_class, head): head
        for family in FAMILIES.values()
        for head, form in family.forms.items()
    }
)
"""Keyed by the class name in config.json, under `architectures`."""

LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        layout.config_class.model_type: layout
        for layout in (
            MODERNBERT_LAYOUT,
            MODERNBERT_DECODER_LAYOUT,
            BERT_LAYOUT,
            ROBERTA_LAYOUT,
            XLM_ROBERTA_LAYOUT,
            DISTILBERT_LAYOUT,
            ALBERT_LAYOUT,
            ELECTRA_LAYOUT,
        )
    }
)
"""Keyed by `model_type` in config.json."""
