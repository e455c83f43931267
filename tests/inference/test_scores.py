"""Choice of the likeliest answers, from logits of any size."""

import numpy as np
import pytest

from clozeline.inference.open_model import check_top_k, likeliest
from clozeline.system.errors import DataError


def logits(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_probabilities_are_the_softmax() -> None:
    values = np.random.default_rng(0).normal(size=50).astype(np.float32)
    places, probabilities = zip(*likeliest(values, 50), strict=True)
    expected = np.exp(values.astype(np.float64)) / np.exp(values.astype(np.float64)).sum()
    np.testing.assert_allclose(probabilities, expected[list(places)], rtol=1e-5)
    assert list(probabilities) == sorted(probabilities, reverse=True)


def test_the_top_answers_keep_their_probabilities_over_all_answers() -> None:
    """The softmax covers all answers: those that are not returned keep their share."""
    values = np.random.default_rng(0).normal(size=50).astype(np.float32)
    assert likeliest(values, 3) == likeliest(values, 50)[:3]
    assert likeliest(logits(0, 0, 0, 0), 1) == [(0, 0.25)]


def test_large_logits_do_not_overflow() -> None:
    assert likeliest(logits(1e4, -1e4, 1e4), 3) == [(0, 0.5), (2, 0.5), (1, 0.0)]


def test_ties_keep_their_order() -> None:
    assert [place for place, _ in likeliest(logits(*[1, 4] * 100), 150)] == [*range(1, 200, 2), *range(0, 100, 2)]


@pytest.mark.parametrize("top_k", [1, 5, 40])
@pytest.mark.parametrize("step", [1e-6, 0.5])
def test_the_likeliest_tokens_equal_those_of_a_full_sort(top_k: int, step: float) -> None:
    """Rounding to steps makes many values equal."""
    drawn = np.random.default_rng(top_k).normal(size=30_522)
    values = (np.round(drawn / step) * step).astype(np.float32)
    values[-top_k:] += 3  # the best are next to each other, at the end
    expected = np.argsort(-values, kind="stable")[:top_k]
    assert [place for place, _ in likeliest(values, top_k)] == expected.tolist()


def test_a_request_for_more_answers_than_exist_returns_all() -> None:
    assert [place for place, _ in likeliest(logits(2, 8), 10)] == [1, 0]


def test_top_k_0_is_refused() -> None:
    with pytest.raises(DataError, match="top_k"):
        check_top_k(0)
