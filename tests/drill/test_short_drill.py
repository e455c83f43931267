"""The short drill: a run that is killed in its training and a push that is killed, as `make drill` kills many."""

from pathlib import Path

import pytest

from clozeline.cluster import ledger
from clozeline.cluster.ledger import Ledger
from clozeline.system.workers import Workers
from tests.cluster.test_ledger import item_of, logged
from tests.drill.__main__ import attempt
from tests.drill.executions import executions, recorded, repeated
from tests.drill.kills import Tally, drill_pushes, drill_runs


def test_repeating_a_killed_run_and_a_killed_push_finishes_both(tmp_path: Path) -> None:
    tally = Tally()
    drill_runs(tmp_path / "runs", rounds=1, seed=1, tally=tally)
    drill_pushes(tmp_path / "pushes", rounds=1, seed=1, tally=tally)
    assert tally.faults == []
    assert tally.counts == {"rounds": 2, "survived": 2, "orphans": 0, "different_bytes": 0}
    assert tally.all_survived


def test_each_execution_is_written_down_and_one_of_a_recorded_task_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_recorded", recorded)
    of_drill = Ledger(tmp_path / "round-0-work/preprocess", "code", Workers(None, 1))
    for _ in range(2):
        list(of_drill.run(item_of(logged, number, tmp_path / "log.txt") for number in range(2)))
    found = executions(tmp_path, "round-0")
    assert found == [("item 0", False, True), ("item 1", False, True)]
    assert repeated([*found, ("item 1", True, False), ("item 0", True, True)]) == ["item 0"]


def test_a_part_that_cannot_go_on_is_counted_and_does_not_end_the_drill() -> None:
    def hanging(tally: Tally) -> None:
        raise TimeoutError("the server does not answer")

    tally = Tally()
    attempt("an outage", tally, hanging)
    assert tally.faults == ["an outage: TimeoutError: the server does not answer"]
    assert (tally.rounds, tally.survived, tally.all_survived) == (1, 0, False)
    assert not Tally(rounds=1).all_survived
