"""Claim: the best allowed span is found, and the threshold for no answer has the largest gain."""

import itertools
import math

import numpy as np
import pytest

from clozeline.tasks.question_answering.contexts import best_span, best_threshold


@pytest.mark.parametrize("most_tokens", [1, 3, 7, 50])
def test_the_best_of_all_allowed_spans_is_found(most_tokens: int) -> None:
    draw = np.random.default_rng(1)
    for length in range(1, 12):
        start_L, end_L = draw.normal(size=(2, length)).astype(np.float32)
        allowed = [
            (start_L[first] + end_L[last], -first, -last)
            for first, last in itertools.product(range(length), repeat=2)
            if 0 <= last - first < most_tokens
        ]
        score, first, last = max(allowed)
        span = best_span(start_L, end_L, most_tokens)
        assert (span.first, span.last) == (-first, -last)
        assert span.score == pytest.approx(score)


def won(margin_Q: np.ndarray, gain_Q: np.ndarray, threshold: float) -> float:
    return float(gain_Q[margin_Q > threshold].sum())


def test_the_chosen_margin_has_the_largest_gain() -> None:
    draw = np.random.default_rng(2)
    for _ in range(100):
        margin_Q = draw.integers(-4, 5, size=12) / 2
        gain_Q = draw.choice([-1.0, -0.5, 0.0, 1.0], size=12)
        best = won(margin_Q, gain_Q, best_threshold(margin_Q, gain_Q))
        assert best == max(won(margin_Q, gain_Q, bound) for bound in (-9.0, *margin_Q.tolist(), 9.0))


def test_all_questions_are_answered_if_each_has_an_answer() -> None:
    assert best_threshold(np.array([3.0, -1.0]), np.array([-1.0, 0.0])) == math.inf


def test_no_question_is_answered_if_no_answer_is_right() -> None:
    assert best_threshold(np.array([3.0, -1.0]), np.array([1.0, 0.5])) == -math.inf
