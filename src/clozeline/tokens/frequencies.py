"""Frequencies of tokens: the knowledge of a model that ignores context.

Shapes: V vocabulary.
"""

import numpy as np
from numpy.typing import NDArray

from clozeline.tokens.masking import Vocabulary
from clozeline.tokens.shards import TokenShards

_CHUNK_TOKENS = 1 << 18


def token_counts(shards: TokenShards, vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Return `counts_V`, in memory that does not grow with the split."""
    counts_V = np.zeros(vocabulary.size, dtype=np.int64)
    for start in range(0, shards.num_tokens, _CHUNK_TOKENS):
        stop = min(start + _CHUNK_TOKENS, shards.num_tokens)
        counts_V += np.bincount(shards.tokens(start, stop), minlength=vocabulary.size)
    return counts_V


def unigram_entropy(shards: TokenShards, vocabulary: Vocabulary) -> float:
    """Return the entropy of the ordinary tokens' own frequencies, in nats per token."""
    counts = token_counts(shards, vocabulary)[vocabulary.ordinary_ids]
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
