"""Claim: the seeds of a fine-tuning are trained side by side on a cluster before the stage runs on one of its nodes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from clozeline.cli import stage
from clozeline.cluster.ray_jobs import JobEnded

STAGE = ["finetune", "task=library"]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[list[list[str]]]:
    """Commands sent to a cluster, of which the training from seed 9 fails."""
    sent: list[list[list[str]]] = []

    def run_jobs(address: str, shared: Path, commands: Sequence[list[str]], *others: Any) -> list[JobEnded]:
        sent.append([command[4:] for command in commands])
        return [JobEnded("node", 5 if command[-1] == "only_seed=9" else 0, 0, 1) for command in commands]

    monkeypatch.setattr("clozeline.cluster.ray_jobs.run_jobs", run_jobs)
    monkeypatch.setattr("clozeline.cluster.address.reachable_cluster", lambda: "auto")
    return sent


def exit_code(seeds: range) -> int:
    with pytest.raises(typer.Exit) as ended:
        stage.run_on_cluster("finetune", ["task=library"], seeds)
    return ended.value.exit_code


def test_each_of_several_seeds_is_a_command_before_the_whole_stage(sent: list[list[list[str]]]) -> None:
    assert exit_code(range(7, 9)) == 0
    assert sent == [[[*STAGE, "only_seed=7"], [*STAGE, "only_seed=8"]], [STAGE]]


def test_a_single_seed_is_trained_by_the_stage(sent: list[list[list[str]]]) -> None:
    assert exit_code(range(7, 8)) == 0
    assert sent == [[STAGE]]


def test_a_seed_that_fails_ends_the_stage_with_its_exit_code(sent: list[list[list[str]]]) -> None:
    assert exit_code(range(7, 10)) == 5
    assert len(sent) == 1
