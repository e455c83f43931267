"""Best answer span of a context from the scores of first and last tokens.

Shapes: L tokens of a window's context.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Span:
    """First and last token of a span; its score is the sum of their scores."""

    first: int
    last: int
    score: float


def best_span(start_L: Scores, end_L: Scores, most_tokens: int) -> Span:
    """Return the span of at most `most_tokens` tokens with the highest score; the first of them on a tie."""
    length = len(start_L)
    width = min(most_tokens, length)
    padded = np.concatenate([end_L, np.full(width - 1, -np.inf, dtype=end_L.dtype)])
    sums = start_L[:, None] + np.lib.stride_tricks.sliding_window_view(padded, width)
    first, offset = np.unravel_index(int(sums.argmax()), sums.shape)
    return Span(int(first), int(first + offset), float(sums[first, offset]))


def best_threshold(margin_Q: npt.NDArray[np.float64], gain_Q: npt.NDArray[np.float64]) -> float:
    """Return the threshold with the largest total gain if questions with a margin above it are left unanswered.

    It is infinite if no question should be left unanswered, and minus infinity if all should.

    Args:
        margin_Q: score of "no answer" minus the score of the best answer.
        gain_Q: gain in a question's figure from leaving it unanswered; negative for a loss.
    """
    order = np.argsort(-margin_Q, kind="stable")
    gains = np.concatenate([[0.0], np.cumsum(gain_Q[order])])
    margins = margin_Q[order]
    is_cut = np.concatenate([[True], margins[:-1] > margins[1:], [True]])
    taken = int(np.flatnonzero(is_cut)[gains[is_cut].argmax()])
    if taken == 0:
        return math.inf
    return float(margins[taken]) if taken < len(margins) else -math.inf
