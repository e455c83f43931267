"""Export gates that every graph passes; a test tightens the gates that it is about."""

from clozeline.params import ExportGates

OPEN_GATES = ExportGates(
    min_agreement=0,
    min_agreement_texts=1,
    min_different_answers=1,
    min_metric_ratio=0,
    min_metric_items=1,
    min_embedding_cosine=0,
    min_token_cosine=0,
    max_batch_flips=1,
    min_batch_cosine=0,
)
