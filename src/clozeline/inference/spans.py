"""Search for the best spans of a context, given the logits of start and end tokens.

Shapes: C tokens of the context in a window.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]
_SPARE_SPANS = 10
"""Number of additional spans to find, because several may become the same after alignment to words."""


@dataclass(frozen=True, slots=True)
class SpanSearch:
    """Parameters of the search; names without units are those of Hugging Face's question-answering task."""

    top_k: int = 1
    max_answer_tokens: int = 15
    may_be_unanswerable: bool = False
    align_to_words: bool = True


@dataclass(frozen=True, slots=True)
class Span:
    """A span of characters of the context, and the sum of its start and end logits."""

    start: int
    end: int
    logit: float


@dataclass(frozen=True, slots=True)
class WindowSpans:
    """Answers of the model in one window of a context."""

    number: int
    """Index of the question among those asked."""
    spans: tuple[Span, ...]
    """Spans, best first."""
    nothing: float
    """Logit of no answer in this window."""
    answered: float
    """Log of the sum of the exponentials of all pairs of start and end, without that of no answer."""


def best_pairs(start_C: Logits, end_C: Logits, search: SpanSearch) -> Iterator[tuple[int, int, float]]:
    """Yield first token, last token and logit of the best spans of at most `max_answer_tokens` tokens, best first."""
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
    """Return, for each token, the first character of an answer that starts there and the end of one that ends there."""
    if not align_to_words:
        return spans_C2[:, 0], spans_C2[:, 1]
    first_C = np.searchsorted(word_C, word_C, side="left")
    last_C = np.searchsorted(word_C, word_C, side="right") - 1
    return spans_C2[first_C, 0], spans_C2[last_C, 1]


def log_sum(values: npt.NDArray[np.float64]) -> float:
    """Return the log of the sum of the exponentials of `values`."""
    largest = float(values.max())
    return largest + math.log(float(np.exp(values - largest).sum()))


def without(total: float, part: float) -> float:
    """Return log(exp(total) - exp(part)); -inf if nothing is left."""
    share = math.exp(min(part - total, 0.0))
    return total + math.log1p(-share) if share < 1 else -math.inf
