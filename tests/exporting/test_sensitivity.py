"""The cost of quantizing a product is the change in probabilities: a shift of all logits costs nothing."""

import numpy as np
import pytest

from clozeline.exporting import ladder


def cost_of(moved_AV: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> float:
    exact_AV = np.arange(12, dtype=np.float32).reshape(3, 4)
    monkeypatch.setattr(ladder, "logits", lambda *given: [exact_AV + moved_AV.astype(np.float32)])
    return ladder._mean_square(object(), [], [exact_AV])


def test_a_common_shift_of_all_logits_has_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cost_of(np.array([[5.0], [-3.0], [0.0]]) * np.ones(4), monkeypatch) == 0


def test_the_cost_of_a_logit_difference_is_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = np.array([[1.0, -1.0, 1.0, -1.0]] * 3)
    assert cost_of(apart + 7, monkeypatch) == pytest.approx(1)
    assert cost_of(3 * apart, monkeypatch) == pytest.approx(9)
