"""`clozeline status` reads the registry, Prefect, the disk and the remote; one that does not answer hides no other."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.states import Failed, Late, Running, Scheduled
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.orchestration import servers
from clozeline.orchestration.prefect_adapter import OWNED_TAG
from clozeline.orchestration.status import project_status, scheduled_runs
from clozeline.registry.decisions import Decision
from clozeline.registry.publishing import Publisher
from clozeline.system.workspace import Workspace
from tests.make.projects import make_toy
from tests.make.stores import ENCODER, write_registry


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A project with a DVC repository that has released nothing, and no Prefect server."""
    workspace = Workspace(make_toy(tmp_path / "project"))
    for name, value in workspace.defaults().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(workspace.root)
    monkeypatch.setattr(servers, "api_url", lambda: None)
    return workspace


def shown() -> str:
    return CliRunner().invoke(app, ["status"], catch_exceptions=False).stdout


def test_before_the_first_release_status_names_the_commands_to_run_and_mlflow_may_be_away(
    workspace: Workspace, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = project_status(workspace)
    assert (found.models, found.runs, found.remote) == ([], None, None)
    (problem,) = found.problems
    assert (problem.about, "PREFECT_API_URL is not set" in problem.problem) == ("scheduled runs", True)
    assert not workspace.mlflow.exists(), "status creates no database"
    for told in ("`clozeline run`", "GB are free", "`clozeline remote add URL`", "scheduled runs: unknown"):
        assert told in shown()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    found = project_status(workspace)
    assert (found.models, found.disk.free_bytes > 0) == (None, True)
    assert [problem.about for problem in found.problems] == ["models", "scheduled runs"]


def test_status_shows_date_and_reason_of_the_champion_and_the_command_for_a_held_candidate(
    workspace: Workspace,
) -> None:
    write_registry(workspace.root)
    publisher = Publisher(workspace.defaults()["MLFLOW_TRACKING_URI"])
    publisher.registry.roll_back(ENCODER, why="wrong labels")
    candidate = publisher.registry.version(ENCODER, "2")
    publisher.registry.nominate(candidate)
    publisher.record(candidate, Decision(outcome="held", reason="`--undo` makes it the champion again"), "1.json")
    (model,) = project_status(workspace).models or ()
    assert (model.name, model.champion, model.why) == (ENCODER, "1", "wrong labels")
    assert model.since
    assert datetime.now(UTC) - model.since < timedelta(hours=1)
    assert (model.candidate, model.outcome, "--undo" in model.reason) == ("2", "held", True)


@flow(name="night")
def night() -> None:
    pass


def test_the_last_and_the_next_scheduled_run_are_found(prefect_server: None) -> None:
    """A late run needs a worker, unless it waits behind another one."""
    now = datetime.now(UTC)
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(night), "status-night", tags=[OWNED_TAG])
        found = scheduled_runs()
        late = client.create_flow_run_from_deployment(deployment, state=Late(scheduled_time=now - timedelta(hours=1)))
        found += scheduled_runs()
        run = client.create_flow_run_from_deployment(deployment)
        client.set_flow_run_state(UUID(str(run.id)), Running(), force=True)
        found += scheduled_runs()
        client.delete_flow_run(late.id)
        client.set_flow_run_state(run.id, Failed(name="Held", message="encoder: no item in common"), force=True)
        client.create_flow_run_from_deployment(deployment, state=Scheduled(scheduled_time=now + timedelta(days=1)))
        found += scheduled_runs()
        client.delete_deployment(deployment)
    never, is_late, behind_another, held = (one for one in found if one.deployment == "status-night")
    assert (never.state, never.next) == ("", None)
    assert (is_late.state, is_late.next) == ("", now - timedelta(hours=1))
    assert "clozeline.flows.worker" in is_late.do
    assert (behind_another.state, behind_another.do) == ("Running", "")
    assert (held.state, held.message, held.next) == ("Held", "encoder: no item in common", now + timedelta(days=1))
    assert "`clozeline release --accept`" in held.do
