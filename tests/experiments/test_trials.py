"""Claim: processes share the trials of a sweep, and one that dies leaves its trial to another."""

from collections.abc import Sequence
from pathlib import Path

from clozeline.experiments.trials import TrialRecord, Trials


def values(trials: Sequence[TrialRecord], number: int) -> dict[str, int]:
    return {"pretrain.steps": 10 * number + len(trials)}


def test_two_claims_at_once_are_of_different_trials_and_none_is_left_in_the_end(tmp_path: Path) -> None:
    trials = Trials(tmp_path / "trials")
    with trials.claimed(2, values) as first, trials.claimed(2, values) as second, trials.claimed(2, values) as third:
        assert first is not None
        assert second is not None
        assert (first.number, second.number, third) == (0, 1, None)
        assert second.values == {"pretrain.steps": 11}
        for trial in (first, second):
            trials.write(trial.changed(state="finished", value=1.5))
    with trials.claimed(2, values) as none_left:
        assert none_left is None
    with trials.claimed(3, values) as more:
        assert more is not None
        assert more.number == 2
    assert [trial.state for trial in trials.read()] == ["finished", "finished", "running"]


def test_the_trial_of_a_process_that_ended_is_taken_up_with_its_values(tmp_path: Path) -> None:
    trials = Trials(tmp_path)
    with trials.claimed(5, values) as lost:
        assert lost is not None
        trials.write(lost.changed(looks={10: 2.5}))
    with trials.claimed(5, lambda trials, number: {"pretrain.steps": 0}) as taken:
        assert taken == lost.changed(looks={10: 2.5})
