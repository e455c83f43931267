"""The short drill: a run that is killed in its training and a push that is killed, as `make drill` kills many."""

from pathlib import Path

from tests.drill.__main__ import attempt
from tests.drill.executions import repeated
from tests.drill.kills import Tally, drill_pushes, drill_runs


def test_repeating_a_killed_run_and_a_killed_push_finishes_both(tmp_path: Path) -> None:
    tally = Tally()
    drill_runs(tmp_path / "runs", rounds=1, seed=1, tally=tally)
    drill_pushes(tmp_path / "pushes", rounds=1, seed=1, tally=tally)
    assert tally.faults == []
    assert tally.counts == {"rounds": 2, "survived": 2, "orphans": 0, "different_bytes": 0}
    assert tally.all_survived


def test_a_task_that_ran_although_it_was_recorded_is_found() -> None:
    found = [("batch 0", False, True), ("batch 1", True, False), ("batch 0", True, True)]
    assert repeated(found) == ["batch 0"]


def test_a_part_that_cannot_go_on_is_counted_and_does_not_end_the_drill() -> None:
    tally = Tally()

    def hanging() -> None:
        raise TimeoutError("the server does not answer")

    attempt(hanging, "an outage", tally)
    assert tally.faults == ["an outage: TimeoutError: the server does not answer"]
    assert (tally.rounds, tally.survived, tally.all_survived) == (1, 0, False)
