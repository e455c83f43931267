"""From the logits of first and last tokens to the best stretches of a context.

C tokens of the context in a window.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]
_SPARE_SPANS = 10
"""Found beside those that are asked for: several may be the same words, once they are whole."""


@dataclass(frozen=True, slots=True)
class SpanSearch:
    """What may be an answer; names without units are those of transformers' question-answering pipeline."""

    top_k: int = 1
    max_answer_tokens: int = 15
    may_be_unanswerable: bool = False
    align_to_words: bool = True


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the context in characters, and the sum of the logits of its ends."""

    start: int
    end: int
    logit: float


@dataclass(frozen=True, slots=True)
class WindowSpans:
    """What the model says of one window of a context."""

    number: int
    """Of the question among those asked."""
    spans: tuple[Span, ...]
    """Best first."""
    nothing: float
    """The logit of: no answer here."""
    answered: float
    """Log of the sum of the exponentials of all pairs of ends but that of no answer."""


def best_pairs(start_C: Logits, end_C: Logits, search: SpanSearch) -> Iterator[tuple[int, int, float]]:
    """First token, last token and sum of the best stretches of at most `max_answer_tokens` tokens, best first."""
    num_tokens = len(start_C)
    width = min(search.max_answer_tokens, num_tokens)
    padded = np.concatenate([end_C, np.full(width - 1, -np.inf, dtype=end_C.dtype)])
    sums = start_C[:, None] + np.lib.stride_tricks.sliding_window_view(padded, width)
    wanted = min(2 * search.top_k + _SPARE_SPANS if search.align_to_words else search.top_k, sums.size)
    flat = sums.ravel()
    best = np.argpartition(-flat, wanted - 1)[:wanted]
    for place in best[np.lexsort((best, -flat[best]))]:
        first, offset = divmod(int(place), width)
        if np.isfinite(flat[place]):
            yield first, first + offset, float(flat[place])


def characters(spans_C2: Places, word_C: Places, align_to_words: bool) -> tuple[Places, Places]:
    """Where an answer starts that begins at each token, and where one ends that ends there."""
    if not align_to_words:
        return spans_C2[:, 0], spans_C2[:, 1]
    first_C = np.searchsorted(word_C, word_C, side="left")
    last_C = np.searchsorted(word_C, word_C, side="right") - 1
    return spans_C2[first_C, 0], spans_C2[last_C, 1]


def log_sum(values: npt.NDArray[np.float64]) -> float:
    """Log of the sum of the exponentials."""
    largest = float(values.max())
    return largest + math.log(float(np.exp(values - largest).sum()))


def without(total: float, part: float) -> float:
    """Log of the difference of two exponentials; -inf if nothing is left."""
    share = math.exp(min(part - total, 0.0))
    return total + math.log1p(-share) if share < 1 else -math.inf
