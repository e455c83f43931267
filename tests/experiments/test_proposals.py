"""Claim: proposals depend on the trials so far alone, stay in the space, and find where the figure is good."""

import pytest

from clozeline.experiments import proposals
from clozeline.experiments.plan import SweepPlan
from clozeline.experiments.trials import TrialRecord

RATE, DECAY, STEPS = "pretrain.optimizer.learning_rate", "pretrain.schedule.decay", "pretrain.steps"
PLAN = SweepPlan.model_validate(
    {
        "metric": "nats_per_byte",
        "trials": 30,
        "space": {
            RATE: {"low": 1e-4, "high": 1e-1, "log": True},
            DECAY: ["linear", "cosine"],
            STEPS: {"low": 8, "high": 64, "step": 8},
        },
    }
)


@pytest.fixture(scope="module")
def trials() -> list[TrialRecord]:
    """Thirty trials of a figure that is best at a rate of 1e-3, whatever the steps are."""
    done: list[TrialRecord] = []
    for number in range(30):
        values = proposals.propose(PLAN, done, number)
        value = abs(float(values[RATE] or 0) - 1e-3) + (0.01 if values[DECAY] == "linear" else 0.0)  # type: ignore[arg-type]
        looks = {10: value + 1, 20: value}
        done.append(TrialRecord(number=number, values=values, state="finished", value=value, looks=looks))
    return done


def test_proposals_are_repeated_whoever_asks_and_lie_in_the_space(trials: list[TrialRecord]) -> None:
    assert proposals.propose(PLAN, trials[:12], 12) == trials[12].values
    for trial in trials:
        rate, steps = trial.values[RATE], trial.values[STEPS]
        assert isinstance(rate, float)
        assert 1e-4 <= rate == float(f"{rate:.3g}") <= 1e-1
        assert trial.values[DECAY] in ("linear", "cosine")
        assert steps in range(8, 65, 8)


def test_later_proposals_are_better_and_what_mattered_is_told(trials: list[TrialRecord]) -> None:
    first, last = (sum(trial.value or 0 for trial in some) for some in (trials[:10], trials[-10:]))
    assert last < first / 2
    shares = proposals.importances(PLAN, trials)
    assert sum(shares.values()) == pytest.approx(1)
    assert max(shares, key=lambda key: shares[key]) == RATE
    assert proposals.importances(PLAN, trials[:3]) == {}


def test_a_trial_worse_than_half_of_the_others_is_hopeless_and_one_outside_the_space_does_not_count(
    trials: list[TrialRecord],
) -> None:
    running = trials[5].changed(number=30, state="running", value=None, looks={10: 9.0})
    outside = trials[6].changed(number=31, values={**trials[6].values, RATE: 5.0}, looks={10: 99.0})
    assert proposals.is_hopeless(PLAN, [*trials, outside, running], running)
    assert not proposals.is_hopeless(PLAN, trials, running.changed(looks={10: 1.0}))
    assert proposals.propose(PLAN, [*trials[:12], outside], 12) == trials[12].values
