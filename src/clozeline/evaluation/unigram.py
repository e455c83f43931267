"""Unigram baseline, which knows only the frequency of each token.

A masked language model that ignores context reaches exactly these figures, so they are reported with its own.

Shapes: V vocabulary.
"""

from dataclasses import dataclass

import numpy as np

from clozeline.tokens.frequencies import token_counts
from clozeline.tokens.masking import Ids, Vocabulary
from clozeline.tokens.shards import TokenShards


@dataclass(frozen=True)
class UnigramFigures:
    """Figures of the baseline on a split."""

    loss_nats_per_token: float
    perplexity: float
    top1: float
    top5: float


def measure(train_V: Ids, validation: TokenShards, vocabulary: Vocabulary) -> UnigramFigures:
    """Return the figures of the validation tokens under `train_V`, the training counts, with add-one smoothing."""
    validation_V = token_counts(validation, vocabulary)
    ordinary = vocabulary.ordinary_ids
    log_probability = np.log((train_V[ordinary] + 1) / (train_V[ordinary] + 1).sum())
    most_frequent = ordinary[np.argsort(-train_V[ordinary], kind="stable")]
    num_targets = validation_V[ordinary].sum()
    loss = float(-(validation_V[ordinary] * log_probability).sum() / num_targets)
    return UnigramFigures(
        loss_nats_per_token=loss,
        perplexity=float(np.exp(loss)),
        top1=float(validation_V[most_frequent[:1]].sum() / num_targets),
        top5=float(validation_V[most_frequent[:5]].sum() / num_targets),
    )
