import numpy as np

from clozeline.records.words.numbers import run_positions


def test_spans_keep_their_order_and_may_overlap() -> None:
    assert run_positions(np.array([5, 0, 4]), np.array([2, 0, 3])).tolist() == [5, 6, 4, 5, 6]
