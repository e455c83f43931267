"""`clozeline status` reads the registry, Prefect, the disk and the remote; one that does not answer hides no other."""

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.states import Failed, Late, Running, Scheduled
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.orchestration.prefect_adapter import OWNED_TAG
from clozeline.registry.decisions import Decision
from clozeline.registry.publishing import Publisher
from clozeline.system.workspace import Workspace
from clozeline.versions import remote
from tests.make.projects import make_toy
from tests.make.stores import ENCODER, write_registry


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a DVC repository that has released nothing."""
    root = make_toy(tmp_path / "project")
    for name, value in Workspace(root).defaults().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clozeline.orchestration.servers.api_url", lambda: None)


def status() -> dict[str, Any]:
    result = CliRunner().invoke(app, ["status", "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def shown() -> str:
    return CliRunner().invoke(app, ["status"], catch_exceptions=False).stdout


@pytest.mark.usefixtures("no_server")
def test_before_the_first_release_status_names_the_commands_to_run(project: Path) -> None:
    found = status()
    assert (found["models"], found["runs"], found["remote"]) == ([], None, None)
    assert found["disk"]["free_bytes"] > 0
    (problem,) = found["problems"]
    assert (problem["about"], problem["problem"]) == (
        "scheduled runs",
        "no Prefect server is known: PREFECT_API_URL is not set",
    )
    assert not (project / "work/mlflow").exists(), "status creates no database"
    text = shown()
    for told in ("`clozeline run`", "GB are free", "`clozeline remote add URL`", "scheduled runs: unknown"):
        assert told in text


@pytest.mark.usefixtures("no_server")
def test_status_shows_date_and_reason_of_the_champion_and_the_command_for_a_held_candidate(project: Path) -> None:
    write_registry(project)
    publisher = Publisher(Workspace(project).defaults()["MLFLOW_TRACKING_URI"])
    publisher.registry.roll_back(ENCODER, why="wrong labels")
    candidate = publisher.registry.version(ENCODER, "2")
    publisher.registry.nominate(candidate)
    publisher.record(candidate, Decision(outcome="held", reason="`--undo` makes it the champion again"), "1.json")
    (model,) = status()["models"]
    assert (model["name"], model["champion"], model["why"]) == (ENCODER, "1", "wrong labels")
    assert datetime.now(UTC) - datetime.fromisoformat(model["since"]) < timedelta(hours=1)
    assert (model["candidate"], model["outcome"]) == ("2", "held")
    text = shown()
    assert "clozeline-encoder: version 1 is the champion since " in text
    assert "reason: `--undo` makes it the champion again" in text


@pytest.mark.usefixtures("no_server")
def test_status_shows_everything_else_if_mlflow_does_not_answer(
    project: Path, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    found = status()
    assert found["models"] is None
    assert [problem["about"] for problem in found["problems"]] == ["models", "scheduled runs"]
    assert "GB are free" in shown()


@pytest.mark.usefixtures("no_server")
def test_a_remote_is_in_sync_after_a_push(project: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    remote.add(project, str(tmp_path / "store"))
    md5 = hashlib.md5(b"an object", usedforsecurity=False).hexdigest()
    folder = project / ".dvc/cache/files/md5" / md5[:2]
    folder.mkdir(parents=True)
    (folder / md5[2:]).write_bytes(b"an object")
    assert status()["remote"] == {"url": str(tmp_path / "store"), "num_missing": 1}
    assert "lacks 1 objects: `clozeline remote push`" in shown()
    remote.push(project)
    assert status()["remote"]["num_missing"] == 0
    assert "has everything" in shown()


@flow(name="night")
def night() -> None:
    pass


def test_status_shows_the_last_and_the_next_scheduled_run(prefect_server: None, project: Path) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    with get_client(sync_client=True) as client:
        tags = [OWNED_TAG]
        deployment = client.create_deployment(client.create_flow(night), "status-night", tags=tags)
        assert "status-night: has not run yet; no next run is planned" in shown()
        run = client.create_flow_run_from_deployment(deployment)
        client.set_flow_run_state(UUID(str(run.id)), Running(), force=True)
        client.set_flow_run_state(run.id, Failed(name="Held", message="encoder: no item in common"), force=True)
        client.create_flow_run_from_deployment(deployment, state=Scheduled(scheduled_time=tomorrow))
        (last,) = [run for run in status()["runs"] if run["deployment"] == "status-night"]
        text = shown()
        client.delete_deployment(deployment)
    assert (last["state"], last["message"]) == ("Held", "encoder: no item in common")
    assert datetime.fromisoformat(last["next"]) == tomorrow
    assert "status-night: Held" in text
    assert "`clozeline release --accept`" in text


def test_status_says_to_start_a_worker_if_a_run_is_late_unless_another_one_is_running(
    prefect_server: None, project: Path
) -> None:
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    with get_client(sync_client=True) as client:
        tags = [OWNED_TAG]
        deployment = client.create_deployment(client.create_flow(night), "late-night", tags=tags)
        client.create_flow_run_from_deployment(deployment, state=Late(scheduled_time=an_hour_ago))
        never_run = shown()
        running = client.create_flow_run_from_deployment(deployment)
        client.set_flow_run_state(UUID(str(running.id)), Running(), force=True)
        behind_another = shown()
        client.delete_deployment(deployment)
    assert "late-night: has not run yet; next at " in never_run
    assert "clozeline.flows.worker" in never_run
    assert "clozeline.flows.worker" not in behind_another
