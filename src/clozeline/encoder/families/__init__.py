"""The encoder families: a row each. A new family is a new row.

All are stock classes of transformers, so that what is trained loads anywhere. That is why none has RMSNorm: no encoder
of transformers 4.57 with a masked head lets its norm be chosen, and one that was exchanged by us would load elsewhere
without an error and give other logits. An encoder of your own can have it: `clozeline.encoder.encoders`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from clozeline.encoder.families.bert import BERT, ELECTRA, ROBERTA, XLM_ROBERTA
from clozeline.encoder.families.compressed import ALBERT, DISTILBERT
from clozeline.encoder.families.deberta import DEBERTA_V2, DEBERTA_V3
from clozeline.encoder.families.form import Family, Form, Objective, TokenIds
from clozeline.encoder.families.long_context import BIG_BIRD, LONGFORMER
from clozeline.encoder.families.modernbert import MODERNBERT

__all__ = ["FAMILIES", "FORMS", "Family", "Form", "Objective", "TokenIds"]

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

FORMS: Mapping[str, tuple[Objective, Form]] = MappingProxyType(
    {
        form.model_class.__name__: (objective, form)
        for family in FAMILIES.values()
        for objective, form in family.forms.items()
    }
)
"""Keyed by the name of the class, which config.json has under `architectures`."""
