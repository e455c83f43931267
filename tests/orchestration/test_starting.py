"""start.lock follows the params and the text; what it said before stays in DVC's cache."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from clozeline.orchestration import checks
from clozeline.params.reading import read_params
from clozeline.registry.start_lock import START_LOCK, StartLock, write_start_lock
from clozeline.system.errors import TransientError
from clozeline.system.workspace import Workspace
from clozeline.versions.graph import StageNode, read_stage_graph
from clozeline.versions.objects import Objects
from tests.make.params import with_values
from tests.make.projects import with_own_stages

PROJECT = Path(__file__).parents[2]
SHIPPED = (PROJECT / START_LOCK).read_bytes()
OLD, NEW = "ab" * 16, "cd" * 16


@pytest.fixture
def project(toy: Path) -> Path:
    with_values(toy, recipe="continue")
    return with_own_stages(toy)


@pytest.fixture
def champion(project: Path, monkeypatch: pytest.MonkeyPatch) -> StartLock:
    """The champion of the registry, version 3, with the architecture that the params ask for."""
    architecture = read_params(project / "params.yaml").pretrain.architecture
    lock = StartLock(model="clozeline-encoder", version="3", text="", files={"w": "3c"}, architecture=architecture)
    monkeypatch.setattr(
        checks, "locked_champion", lambda model, text, workspace: lock.model_copy(update={"text": text})
    )
    monkeypatch.setattr(checks, "fetch_trained", lambda lock, workspace: workspace.root)
    return lock


def older(champion: StartLock, **changes: object) -> StartLock:
    return champion.model_copy(update={"version": "2", "text": OLD, **changes})


def settle(root: Path, *, is_new: bool = True) -> bool:
    """Settle start.lock; `is_new`: whether a snapshot will be taken."""
    graph = [_node(node, is_new) for node in read_stage_graph(root)]
    with disable_run_logger():
        return checks.settle_start(Workspace(root), graph, read_params(root / "params.yaml"))


def _node(node: StageNode, is_new: bool) -> StageNode:
    return replace(node, is_changed=is_new) if node.name == "snapshot" else node


def snapshot(root: Path, md5: str) -> None:
    out = f"{{path: data/raw, md5: {md5}}}"
    (root / "dvc.lock").write_text(f"{{schema: '2.0', stages: {{snapshot: {{cmd: take, outs: [{out}]}}}}}}")


def lock_of(root: Path) -> StartLock | None:
    return StartLock.of_yaml(root / START_LOCK)


@pytest.mark.parametrize("change", [lambda file: file.write_bytes(SHIPPED), Path.unlink])
def test_the_first_lock_names_the_champion_even_before_the_snapshot_stage(
    project: Path, champion: StartLock, change: Callable[[Path], object]
) -> None:
    change(project / START_LOCK)
    assert settle(project)
    assert lock_of(project) == champion


def test_the_last_lock_stays_until_the_snapshot_is_taken(project: Path, champion: StartLock) -> None:
    write_start_lock(project / START_LOCK, older(champion))
    assert not settle(project)
    assert lock_of(project) == older(champion)


def test_a_lock_of_another_model_is_replaced_if_the_champion_fits(project: Path, champion: StartLock) -> None:
    write_start_lock(project / START_LOCK, older(champion, architecture={"objective": "rtd"}))
    assert settle(project)
    assert lock_of(project) == champion


def test_only_a_new_snapshot_changes_the_start(project: Path, champion: StartLock) -> None:
    write_start_lock(project / START_LOCK, older(champion))
    snapshot(project, OLD)
    assert not settle(project, is_new=False)
    assert lock_of(project) == older(champion)
    snapshot(project, NEW)
    assert settle(project, is_new=False)
    assert lock_of(project) == champion.model_copy(update={"text": NEW})


def test_a_recipe_with_new_weights_clears_the_lock_and_the_cache_keeps_all_locks(
    project: Path, champion: StartLock
) -> None:
    settle(project)
    of_champion = (project / START_LOCK).read_bytes()
    with_values(project, recipe="measured")
    assert settle(project)
    assert (project / START_LOCK).read_bytes() == SHIPPED
    (project / START_LOCK).unlink()
    with Objects.open(project) as objects:
        for content in (SHIPPED, of_champion):
            md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
            assert objects.fault_of(START_LOCK, md5, commit=None) is None


def test_a_project_without_a_start_is_left_unchanged(toy: Path) -> None:
    root = with_own_stages(toy)
    assert not settle(root)
    assert (root / START_LOCK).read_bytes() == SHIPPED
    assert not (root / ".dvc" / "cache").exists()


def test_a_start_that_is_already_local_needs_no_registry(
    project: Path, champion: StartLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(lock: StartLock, workspace: Workspace) -> None:
        raise TransientError("the registry does not answer", given="", expected="", do="")

    monkeypatch.setattr(checks, "check_still_registered", away)
    write_start_lock(project / START_LOCK, champion)
    fetched = []
    monkeypatch.setattr(checks, "fetch_trained", lambda lock, workspace: fetched.append(lock))
    graph = [_node(node, is_new=False) for node in read_stage_graph(project)]
    checks.require_start(Workspace(project), graph, read_params(project / "params.yaml"))
    assert fetched == [champion]
