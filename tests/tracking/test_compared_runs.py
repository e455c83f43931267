"""Runs to compare are found by name, by id, or as the last two."""

import time
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from clozeline.system.errors import ArtifactError
from clozeline.tracking.past_runs import compared_runs, comparison_address
from tests.tracking.test_past_runs import address, end_with, execute, open_run, write_lock

__all__ = ["address"]


def train(address: str, folder: Path, name: str, steps: int) -> str:
    """Log a flow run that trains, with a point of its loss at each step; return its id."""
    lock = write_lock(folder / "dvc.lock", pretrain=steps)
    run = open_run(address, name)
    execute(run, lock, "pretrain", [steps / step for step in range(1, steps + 1)])
    run_id = end_with(run, lock, files=[lock])
    time.sleep(0.002)  # MLflow stores milliseconds
    return run_id


def test_runs_are_found_by_name_by_id_and_as_the_last_two_with_other_results(address: str, tmp_path: Path) -> None:
    ids = [train(address, tmp_path, name, steps) for name, steps in (("fox", 2), ("owl", 3), ("elk", 3))]
    fox, owl = compared_runs(address, ["fox", ids[1][:12]])
    assert [(fox.name, fox.run_id), (owl.name, owl.run_id)] == [("fox", ids[0]), ("owl", ids[1])]
    assert MlflowClient(address).get_run(fox.training_id).data.metrics["loss"] == 1.0, "its last point"
    assert fox.facts.lock
    assert fox.facts.lock.stages["pretrain"].flat_params() == {"steps": "2"}
    assert [run.name for run in compared_runs(address, [])] == ["fox", "elk"], "owl has the results of elk"

    for wanted, fault in ((["fox", "bat"], "no run with this name"), (["fox", ids[0]], "number of runs")):
        with pytest.raises(ArtifactError, match=fault) as raised:
            compared_runs(address, wanted)
        assert f"elk ({ids[2][:8]}), owl ({ids[1][:8]}), fox ({ids[0][:8]})" in raised.value.do
    with pytest.raises(ArtifactError, match="number of runs"):
        compared_runs(address, ["fox"])

    MlflowClient(address).set_tag(ids[2], "mlflow.runName", "owl")
    with pytest.raises(ArtifactError, match="2 runs have this name"):
        compared_runs(address, ["fox", "owl"])


def test_without_two_runs_the_next_command_is_named(address: str, tmp_path: Path) -> None:
    train(address, tmp_path, "fox", 2)
    with pytest.raises(ArtifactError, match="no two runs .* fox") as raised:
        compared_runs(address, [])
    assert "clozeline run" in raised.value.do


def test_mlflows_own_page_is_that_of_the_server_or_of_the_local_pages() -> None:
    page = "/#/compare-runs?runs=%5B%22a%22%2C%20%22b%22%5D&experiments=%5B%221%22%5D"
    assert comparison_address("https://mlflow.example/", ["a", "b"], ["1", "1"]) == f"https://mlflow.example{page}"
    assert comparison_address("sqlite:///work/mlflow.db", ["a", "b"], ["1", "1"]) == f"http://127.0.0.1:5000{page}"
