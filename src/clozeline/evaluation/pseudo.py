"""Pseudo-log-likelihood of some documents: each token is hidden alone, with all others as context.

Salazar et al. 2020, section 2. It costs a row for each token, so it is measured on documents spread evenly over a
split.

Shapes: D documents, T targets of a batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from clozeline.evaluation import asking
from clozeline.evaluation.asking import Asked
from clozeline.evaluation.figures import DocumentSums, Figures, measure
from clozeline.evaluation.judged import Judged
from clozeline.language_modelling.batches import Split
from clozeline.language_modelling.language_model import LanguageModel
from clozeline.processes.group import ALONE, Group
from clozeline.tokens.masking import Ids
from clozeline.tokens.rows import Rows

_SHOWN = ("loss_nats_per_token", "perplexity", "nats_per_byte")
_ENDS = ("", "_low", "_high")


@dataclass(frozen=True)
class ByChosen:
    """Groups by document: the n-th of the chosen documents, in their order, is group n."""

    document_D: Ids

    @property
    def num_groups(self) -> int:
        return len(self.document_D)

    def groups(self, asked: Asked, judged: Judged) -> Ids:
        return np.searchsorted(self.document_D, asked.tokens.document_N[asked.target_T])


def spread(split: Split, num_documents: int) -> tuple[Split, Ids]:
    """Choose at most `num_documents` documents, evenly spaced; return the split of their rows, and their ordinals."""
    last = split.shards.num_documents - 1
    document_D = np.unique(np.linspace(0, last, min(num_documents, last + 1)).astype(np.int64))
    rows = split.rows
    first_D, behind_D = (np.searchsorted(rows.document_R, document_D, side=side) for side in ("left", "right"))
    chosen = [np.arange(first, behind) for first, behind in zip(first_D.tolist(), behind_D.tolist(), strict=True)]
    row_R = np.concatenate(chosen)
    of_documents = Rows(rows.document_R[row_R], rows.start_R[row_R], rows.length_R[row_R])
    return replace(split, rows=of_documents), document_D


def measured(
    model: LanguageModel,
    split: Split,
    document_D: Ids,
    *,
    batch_tokens: int,
    seed: int,
    num_samples: int,
    advance: Callable[[int], None],
    group: Group = ALONE,
) -> dict[str, float]:
    """Return the figures of the chosen documents, each with its 95 % interval; empty if they hold no known token.

    Args:
        advance: called with the rows of each batch; their total over all processes is `asking.num_copies(split)`.
        group: processes that share the work.
    """
    questions = asking.one_by_one(split, batch_tokens=batch_tokens, group=group)
    sums = measure(model, questions, {"document": ByChosen(document_D)}, advance, group)["document"]
    if not sums.num_targets:
        return {}
    offsets = split.shards.offsets
    lengths_D = (offsets[document_D + 1] - offsets[document_D]).astype(np.int64)
    bytes_D = split.shards.document_bytes[document_D].astype(np.int64)
    documents = DocumentSums(sums, lengths_D, bytes_D)
    figures = Figures.of(documents, len(document_D), seed=seed, num_samples=num_samples)
    shown = {f"pseudo_{name}{end}": getattr(figures, f"{name}{end}") for name in _SHOWN for end in _ENDS}
    return {**shown, "pseudo_documents": len(document_D), "pseudo_target_tokens": figures.target_tokens}
