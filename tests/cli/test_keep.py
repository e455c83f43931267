"""`clozeline compare`: tables, or one JSON object, and the addresses of MLflow's own comparison."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from tests.tracking.conftest import address, empty_database
from tests.tracking.test_past_runs import train

__all__ = ["address", "empty_database"]


@pytest.fixture
def ids(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two runs of the project in the working folder."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.chdir(tmp_path)
    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / name).touch()
    return [train(address, tmp_path, name, steps) for name, steps in (("fox", 2), ("owl", 3))]


def test_the_tables_end_with_mlflows_own_comparison(ids: list[str]) -> None:
    shown = CliRunner().invoke(app, ["compare"])
    assert shown.exit_code == 0, shown.output
    *tables, _, figures, curves = shown.stdout.splitlines()
    assert {"fox", "owl", "steps"} <= set(" ".join(tables).split())
    assert all(run_id in figures for run_id in ids)
    assert "/#/compare-runs?" in curves
    assert not any(run_id in curves for run_id in ids), "the runs of the trainings have the curves"


def test_json_is_one_object_without_anything_beside_it(ids: list[str]) -> None:
    record = json.loads(CliRunner().invoke(app, ["compare", "fox", "owl", "--json"]).stdout)
    assert [run["run_id"] for run in record["runs"]] == ids
    assert record["params"] == {"steps": ["2", "3"]}
    assert set(record["mlflow"]) == {"figures", "curves"}
