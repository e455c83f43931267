"""A scheduled run does not start beside a running one, and a deployment that always crashes is not retried for ever."""

from pathlib import Path
from unittest.mock import Mock
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.flows import load_flow_from_entrypoint
from prefect.states import Completed, Crashed, Running

from clozeline.flows import nightly as room
from clozeline.flows.nightly import nightly
from clozeline.orchestration.prefect_adapter import last_crashes, leave_to, living_run
from clozeline.system.errors import ContractError, TransientError
from clozeline.system.workspace import run_lock
from tests.make.projects import PROJECT

pytestmark = pytest.mark.usefixtures("prefect_server")


@flow
def work() -> None:
    pass


def test_a_second_run_stops_and_resets_the_running_one_from_crashed_to_running(tmp_path: Path) -> None:
    with get_client(sync_client=True) as client:
        living = str(client.create_flow_run(work, state=Running()).id)
        client.set_flow_run_state(UUID(living), Crashed(message="no heartbeat"), force=True)
        with run_lock(tmp_path / "run.lock", flow_run=living):
            assert living_run(tmp_path / "run.lock", wait_seconds=0) == living
            state = leave_to(living)
        assert state.is_cancelled()
        assert client.read_flow_run(UUID(living)).state.is_running()
    assert living_run(tmp_path / "run.lock", wait_seconds=0) is None


def test_only_consecutive_crashes_are_counted() -> None:
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(work), "crashing")
        for state in (Crashed(), Completed(), Crashed(), Crashed()):
            run = client.create_flow_run_from_deployment(deployment)
            client.set_flow_run_state(run.id, Running(), force=True)
            client.set_flow_run_state(run.id, state, force=True)
        own = client.create_flow_run_from_deployment(deployment)
        client.set_flow_run_state(own.id, Running(), force=True)
        assert last_crashes(client, deployment) == 2


# The steps of a nightly run. Its release waits for a registry that does not answer.
ALL = ["pipeline refresh", "push", "release waits", "write"]


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that were done; none does anything."""
    done: list[str] = []
    for name in ("pipeline", "push", "release", "write"):
        step = Mock(side_effect=lambda *_, name=name, **options: done.append(" ".join([name, *options])) or [])
        monkeypatch.setattr(room, name, step)
    return done


def test_the_flows_of_the_deployment_are_found_and_the_nightly_one_checks_for_a_running_flow_first(
    tmp_path: Path, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nightly", "drift"):
        deployed = load_flow_from_entrypoint(f"{PROJECT}/flows/{name}.py:{name}")
        assert (deployed.name, deployed.parameters.required) == (name, [])
    monkeypatch.setattr(room, "living_run", lambda lock_file: "the id of the living run")
    monkeypatch.setattr(room, "leave_to", lambda run: Completed(message=run))
    assert (nightly(tmp_path, return_state=True).message, done) == ("the id of the living run", [])


def test_a_nightly_run_with_contract_violations_ends_in_its_own_state(
    tmp_path: Path, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ContractError("the text differs", given="60 % fewer texts", expected="a normal night", do="check it")
    monkeypatch.setattr(room, "pipeline", Mock(side_effect=error))
    state = nightly(tmp_path, return_state=True)
    assert (state.name, state.is_failed(), done) == ("ContractBroken", True, ["push", "write"])
    assert "60 % fewer texts" in state.message
    with pytest.raises(ContractError):
        nightly(tmp_path)


def test_a_nightly_run_pushes_before_the_release_and_releases_nothing_if_the_push_fails(
    tmp_path: Path, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is behind a champion can always be fetched elsewhere."""
    assert nightly(tmp_path, return_state=True).is_completed()
    assert done == ALL
    error = TransientError("the remote does not answer", given="s3://team", expected="a store", do="try again later")
    monkeypatch.setattr(room, "push", Mock(side_effect=error))
    state = nightly(tmp_path, return_state=True)
    assert (state.name, done) == ("Failed", [*ALL, "pipeline refresh", "write"])
    assert "the remote does not answer" in state.message
