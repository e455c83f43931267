from itertools import pairwise

import pytest

from clozeline.training.schedule import Decay, learning_rate


def rate(step: int, decay: Decay = "cosine", warmup_steps: int = 10) -> float:
    return learning_rate(step, peak=1.0, warmup_steps=warmup_steps, total_steps=110, final_fraction=0.1, decay=decay)


def test_warm_up_rises_by_equal_steps_to_the_peak_and_wastes_no_step_at_zero() -> None:
    assert [rate(step) for step in range(10)] == pytest.approx([0.1 * (step + 1) for step in range(10)])


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_the_last_step_has_the_final_fraction(decay: Decay) -> None:
    assert rate(10, decay) == pytest.approx(1.0)
    assert rate(109, decay) == pytest.approx(0.1)


def test_half_way_the_cosine_is_half_way_between_peak_and_floor() -> None:
    assert learning_rate(
        60, peak=1.0, warmup_steps=10, total_steps=111, final_fraction=0.1, decay="cosine"
    ) == pytest.approx(0.55)


def test_a_quarter_of_the_way_cosine_is_above_linear() -> None:
    assert rate(35, "cosine") > rate(35, "linear")


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_the_rate_never_rises_after_warm_up(decay: Decay) -> None:
    rates = [rate(step, decay) for step in range(9, 110)]
    assert all(before >= after for before, after in pairwise(rates))


def test_without_warm_up_the_first_step_is_at_the_peak() -> None:
    assert rate(0, warmup_steps=0) == 1.0
