"""The baseline that knows only how frequent each token is.

A masked language model that has learned nothing of context stops exactly here, so its figures stand beside.
"""

from dataclasses import dataclass

import numpy as np

from clozeline.tokens.masking import Vocabulary
from clozeline.tokens.shards import TokenShards

_CHUNK_TOKENS = 1 << 22


@dataclass(frozen=True)
class UnigramFigures:
    """The baseline on a split."""

    loss_nats_per_token: float
    perplexity: float
    top1: float
    top5: float


def measure(train: TokenShards, validation: TokenShards, vocabulary: Vocabulary) -> UnigramFigures:
    """Cross-entropy of the validation tokens under the training part's frequencies, add-one smoothed."""
    train_V = _counts(train, vocabulary)
    validation_V = _counts(validation, vocabulary)
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


def _counts(shards: TokenShards, vocabulary: Vocabulary) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Occurrences of each token id, in memory that does not grow with the split."""
    counts_V = np.zeros(vocabulary.size, dtype=np.int64)
    for start in range(0, shards.num_tokens, _CHUNK_TOKENS):
        stop = min(start + _CHUNK_TOKENS, shards.num_tokens)
        counts_V += np.bincount(shards.tokens(start, stop), minlength=vocabulary.size)
    return counts_V
