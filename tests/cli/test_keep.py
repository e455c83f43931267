"""`clozeline compare` ends with the comparison of MLflow; `clozeline status` says what to type where a thing waits."""

import json
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.cli import keep as command
from clozeline.orchestration import status
from clozeline.orchestration.status import Disk, ModelStatus, Problem, ProjectStatus, Remote, ScheduledRun
from clozeline.system.errors import ParamsError
from clozeline.system.workspace import Workspace
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


def test_the_tables_or_the_json_object_end_with_mlflows_own_comparison(ids: list[str]) -> None:
    shown = CliRunner().invoke(app, ["compare"], catch_exceptions=False)
    *tables, _, figures, curves = shown.stdout.splitlines()
    assert {"fox", "owl", "steps"} <= set(" ".join(tables).split())
    assert all(run_id in figures for run_id in ids)
    assert "/#/compare-runs?" in curves
    assert not any(run_id in curves for run_id in ids), "the runs of the trainings have the curves"
    record = json.loads(CliRunner().invoke(app, ["compare", "fox", "owl", "--json"]).stdout)
    assert [run["run_id"] for run in record["runs"]] == ids
    assert record["params"] == {"steps": ["2", "3"]}
    assert set(record["mlflow"]) == {"figures", "curves"}


NOW = datetime(2026, 11, 25, 5, 30, tzinfo=UTC)
FOUND = ProjectStatus(
    models=[
        ModelStatus(
            name="clozeline-encoder",
            champion="7",
            since=NOW,
            why="every gate passed",
            who="worker@host",
            candidate="8",
            outcome="held",
            reason="too few items: `clozeline release --accept` promotes it",
        )
    ],
    runs=[ScheduledRun(deployment="nightly/nightly", state="Failed", started=NOW, message="full", do="free some room")],
    disk=Disk(free_bytes=41_200_000_000, total_bytes=120_000_000_000),
    remote=Remote(url="s3://bucket/x", num_missing=12),
    problems=[Problem(about="models", problem="the store does not answer", given="http://x", do="start it")],
)


def test_the_lines_name_the_next_command_and_the_json_record_has_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "project_here", lambda: Workspace(tmp_path))
    monkeypatch.setattr(status, "project_status", lambda workspace: FOUND)
    text, record = (CliRunner().invoke(app, ["status", *more]).stdout for more in ([], ["--json"]))
    expected = ["version 7 is the champion", "by worker@host", "version 8, held", "`clozeline release --accept`"]
    expected += ["do: free some room", "41.2 of 120.0 GB", "lacks 12 objects: `clozeline remote push`"]
    expected += ["the store does not answer (http://x)", "do: start it"]
    assert [words for words in expected if words not in text] == []
    assert ProjectStatus.model_validate_json(record) == FOUND


def test_a_port_in_use_is_named_before_anything_starts(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = CliRunner().invoke(app, ["ui", "--prefect-port", str(port)]).exception
    assert isinstance(error, ParamsError)
    assert f"--prefect-port {port + 1}" in error.do
    assert not (project / "work/logs").exists()
