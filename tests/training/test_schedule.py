import inspect
import math
import typing
from itertools import pairwise

import pytest

from clozeline.params.model import ScheduleParams
from clozeline.training.optimizers import DECAYS, Schedule

KINDS = sorted(DECAYS)
FALLING = sorted(set(DECAYS) - {"constant"})


def schedule(decay: str, total_steps: int = 110, warmup_steps: int = 10, **values: float) -> Schedule:
    given = {
        "warmup_fraction": warmup_steps / total_steps,
        "initial_fraction": 0.0,
        "final_fraction": 0.1,
        "power": 2.0,
        "decay_fraction": 0.2,
        **values,
    }
    return Schedule(ScheduleParams(decay=decay, **given), total_steps)


def test_every_decay_of_params_exists() -> None:
    assert set(DECAYS) == set(typing.get_args(ScheduleParams.model_fields["decay"].annotation))


@pytest.mark.parametrize("decay", KINDS)
def test_warm_up_rises_by_equal_steps_to_the_peak_and_wastes_no_step_at_zero(decay: str) -> None:
    fractions = [schedule(decay).fraction(step) for step in range(10)]
    assert fractions == pytest.approx([0.1 * (step + 1) for step in range(10)])


@pytest.mark.parametrize(("fraction", "total_steps", "steps"), [(0.0238, 6300, 150), (0.0238, 50, 1), (1.0, 8, 8)])
def test_warm_up_is_a_share_of_the_steps(fraction: float, total_steps: int, steps: int) -> None:
    assert Schedule.linear_to_zero(fraction, total_steps).warmup_steps == steps


def test_warm_up_rises_from_its_initial_fraction() -> None:
    warm = schedule("cosine", initial_fraction=0.5)
    assert [warm.fraction(step) for step in range(10)] == pytest.approx([0.5 + 0.05 * (step + 1) for step in range(10)])


@pytest.mark.parametrize("decay", KINDS)
def test_without_warm_up_the_first_step_is_at_the_peak(decay: str) -> None:
    assert schedule(decay, warmup_steps=0).fraction(0) == 1.0


@pytest.mark.parametrize("decay", FALLING)
def test_the_rate_falls_from_the_peak_to_its_final_fraction_at_the_last_step(decay: str) -> None:
    falling = schedule(decay)
    assert falling.fraction(10) == 1.0
    assert falling.fraction(109) == pytest.approx(0.1)
    assert falling.fraction(500) == pytest.approx(0.1)


@pytest.mark.parametrize("decay", ["cosine", "linear", "polynomial"])
def test_the_last_warm_up_step_and_the_first_decay_step_are_at_the_peak(decay: str) -> None:
    falling = schedule(decay)
    assert [step for step in range(110) if falling.fraction(step) == 1.0] == [9, 10]


@pytest.mark.parametrize("decay", KINDS)
def test_the_rate_never_rises_after_warm_up(decay: str) -> None:
    falling = schedule(decay)
    fractions = [falling.fraction(step) for step in range(9, 110)]
    assert all(before >= after for before, after in pairwise(fractions))


@pytest.mark.parametrize(
    ("decay", "left"),
    [
        ("cosine", (1 + math.cos(math.pi / 4)) / 2),
        ("linear", 0.75),
        ("polynomial", 0.75**2),
        ("constant", 1.0),
        ("wsd", 1.0),
    ],
)
def test_after_a_quarter_of_the_decay_the_rate_matches_the_formula(decay: str, left: float) -> None:
    assert schedule(decay, total_steps=111).fraction(35) == pytest.approx(0.1 + 0.9 * left)


def test_a_constant_rate_stays_at_the_peak_to_the_end() -> None:
    assert {schedule("constant").fraction(step) for step in range(9, 110)} == {1.0}


def test_wsd_is_constant_until_its_decay_share_and_then_follows_one_minus_the_root() -> None:
    wsd = schedule("wsd", total_steps=200, final_fraction=0.0, decay_fraction=0.5)
    assert {wsd.fraction(step) for step in range(9, 100)} == {1.0}
    falling = [wsd.fraction(step) for step in range(100, 200)]
    assert falling == pytest.approx([1 - math.sqrt((place + 1) / 100) for place in range(100)])


def test_wsd_whose_decay_would_start_inside_warm_up_starts_after_it() -> None:
    wsd = schedule("wsd", total_steps=20, decay_fraction=0.9)
    assert wsd.fraction(9) == wsd.fraction(10) == 1.0
    assert wsd.fraction(11) < 1.0


@pytest.mark.parametrize("decay", KINDS)
def test_a_budget_with_only_warm_up_has_no_decay(decay: str) -> None:
    assert [schedule(decay, total_steps=10).fraction(step) for step in range(10)][-1] == 1.0


@pytest.mark.parametrize("decay", KINDS)
def test_the_schedule_depends_only_on_step_and_params(decay: str) -> None:
    """P27: batches, micro-batches and devices are not arguments, and a second call is equal."""
    assert list(inspect.signature(Schedule).parameters) == ["params", "total_steps"]
    assert list(inspect.signature(Schedule.fraction).parameters) == ["self", "step"]
    forwards = [schedule(decay).fraction(step) for step in range(110)]
    assert forwards == [schedule(decay).fraction(step) for step in reversed(range(110))][::-1]


def test_the_fine_tuning_rate_warms_up_and_falls_linearly_to_zero() -> None:
    linear = Schedule.linear_to_zero(warmup_fraction=0.3, total_steps=7)
    fractions = [linear.fraction(step) for step in range(7)]
    assert fractions == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0])
