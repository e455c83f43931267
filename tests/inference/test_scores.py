"""Probabilities from logits of any size."""

import numpy as np
import pytest

from clozeline.errors import DataError
from clozeline.inference.scores import check_top_k, softmax, top


def test_softmax_survives_large_logits() -> None:
    scores = softmax(np.array([1e4, -1e4, 1e4], dtype=np.float32))
    np.testing.assert_allclose(scores, [0.5, 0, 0.5])


def test_softmax_of_rows_sums_to_one() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    np.testing.assert_allclose(softmax(rows).sum(axis=1), 1)


def test_the_best_come_first_and_ties_in_order() -> None:
    assert top(np.array([0.1, 0.4, 0.1, 0.4, 0.0]), 3) == [1, 3, 0]


def test_more_than_there_are_gives_all() -> None:
    assert top(np.array([0.2, 0.8]), 10) == [1, 0]


def test_none_is_no_number_of_answers() -> None:
    with pytest.raises(DataError, match="top_k"):
        check_top_k(0)
