"""A sweep removes what no version, no recent night and no branch or tag needs; everything else stays."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.orchestration import garbage
from clozeline.orchestration.garbage import sweep_project
from clozeline.registry.start_lock import START_LOCK, StartLock, write_start_lock
from clozeline.system.errors import ArtifactError, ClozelineError, TransientError
from clozeline.system.files import SweptStore
from clozeline.system.workspace import Workspace, run_lock
from clozeline.tracking.delivery import WORKSPACE
from clozeline.tracking.outbox import Outbox, TrackedRun
from clozeline.versions import remote
from clozeline.versions.objects import Objects
from tests.make.kills import is_killed
from tests.make.projects import PROJECT
from tests.make.swept_project import KEPT, NIGHTS, OWN, flow_run, lock_of, make_nights, outcomes, register, settled

# Nights whose files in MLflow are removed.
GONE = {"of the previous", "forgotten", "of the champion"}
WAITING = TrackedRun(name="waiting", tags={WORKSPACE: OWN}, started_ms=1)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project; it is not where it was made, so that no copy of it finds MLflow's files there."""
    root = make_nights(tmp_path_factory.mktemp("nights"))
    return root.rename(root.with_name("template"))


@pytest.fixture
def workspace(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A copy of the project, whose runs MLflow's environment variable now names."""
    workspace = settled(template, tmp_path / "one/project")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", workspace.defaults()["MLFLOW_TRACKING_URI"])
    return workspace


@pytest.fixture
def pushed(workspace: Workspace) -> Workspace:
    return with_remote(workspace)


def with_remote(workspace: Workspace) -> Workspace:
    remote.add(workspace.root, str(workspace.root.parent / "store"))
    remote.push(workspace.root)
    return workspace


def swept(workspace: Workspace, min_age: timedelta = timedelta(), *, shared: bool = False) -> dict[str, SweptStore]:
    return {store.name: store for store in sweep_project(workspace, 2, min_age, shared=shared, is_dry=False)}


def files(workspace: Workspace) -> set[str]:
    """Return every file of every store that a sweep may change."""
    places = (".dvc/cache", "../store", "work/mlflow/artifacts", "work/logs", "work/pretrain", "work/search")
    found = (path for place in places for path in (workspace.root / place).rglob("*") if path.is_file())
    return {os.path.relpath(path, workspace.root) for path in found}


def faults(workspace: Workspace, night: str) -> list[str]:
    """Return what is missing of the outputs of a night."""
    outs = [out for stage in lock_of(workspace.root, night).stages.values() for out in stage.outs]
    with Objects.open(workspace.root) as objects:
        found = (objects.fault_of("no such file", str(out.md5), None) for out in outs)
        return [fault for fault in found if fault]


def run_of(night: str) -> Run:
    client = MlflowClient()
    known = [experiment.experiment_id for experiment in client.search_experiments()]
    (run,) = client.search_runs(known, f"attributes.run_name = '{night}'")
    return run


def artifacts(workspace: Workspace, night: str) -> list[Path]:
    """Return the stored files of a run; MLflow itself would look for them where the project was before."""
    return list((workspace.mlflow / "artifacts").rglob(f"{run_of(night).info.run_id}/artifacts/*"))


def age(path: Path) -> None:
    """Make the files of a folder as old as the first night."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "file").write_text("x")
    for each in (path / "file", path):
        os.utime(each, (1.0, 1.0))


def test_data_of_champions_and_of_the_last_nightly_runs_are_kept_and_restorable(workspace: Workspace) -> None:
    assert {night: faults(workspace, night) for night in NIGHTS} == {night: [] for night in NIGHTS}
    before = files(workspace)
    assert not swept(workspace, timedelta(hours=1))["DVC cache: objects"].removals, "they are too young"
    assert {path for path in before - files(workspace) if ".dvc" in path} == set()
    stores = swept(workspace)
    assert {night for night in NIGHTS if faults(workspace, night)} == {"forgotten"}
    assert (stores["DVC cache: runs"].num_removable, stores["DVC cache: runs"].num_kept) == (2, 10)
    assert stores["DVC cache: objects"].num_removable == 2, "a text, which is a page too, and the list of pages"
    for night in ("of the champion", "last but one"):
        assert outcomes(workspace.root, night) == ["restored", "restored"], night
    assert outcomes(workspace.root, "forgotten") == ["executed", "executed"]
    assert not any(store.removals for store in swept(workspace).values()), "its data are those of the working tree"


def test_data_of_the_start_are_kept_and_waiting_records_are_delivered_first(workspace: Workspace) -> None:
    version = register(workspace, MlflowClient(), "forgotten")
    start = StartLock(model=version.name, version=version.version, text="", files={}, architecture={})
    write_start_lock(workspace.root / START_LOCK, start)
    Outbox(workspace.outbox).open("x", WAITING)
    swept(workspace)
    assert faults(workspace, "forgotten") == []
    assert run_of("waiting")


def test_the_remote_is_swept_only_on_request_and_a_push_restores_it(pushed: Workspace) -> None:
    local = swept(pushed)
    assert "DVC remote: objects" not in local
    assert remote.missing(pushed.root) == 0
    assert faults(pushed, "forgotten") == [], "fetched again from the remote"
    stores = swept(pushed, shared=True)
    assert (stores["DVC remote: runs"].num_removable, stores["DVC remote: objects"].num_removable) == (2, 2)
    assert faults(pushed, "forgotten")
    assert outcomes(pushed.root, "forgotten") == ["executed", "executed"]
    assert remote.push(pushed.root) == 2
    shutil.rmtree(pushed.root / ".dvc/cache/files")
    assert {night for night in NIGHTS if faults(pushed, night)} == set()


def test_files_of_older_runs_are_removed_and_their_metrics_stay_although_sweeps_are_killed_there(
    workspace: Workspace,
) -> None:
    for at_write in range(9):
        if not is_killed(lambda: swept(workspace), at_write=at_write, writes=["set_tag"]):
            break
    assert {night for night in NIGHTS if not artifacts(workspace, night)} == GONE
    assert not artifacts(workspace, "upper forgotten")
    assert artifacts(workspace, "upper of the champion"), "its outputs are those of the champion"
    states = [run.data.tags.get("clozeline.files") for run in MlflowClient().search_runs(["1"])]
    assert sorted(filter(None, states)) == ["removed"] * 4
    assert swept(workspace)["MLflow: files of runs"].num_removable == 0
    assert sweep_project(workspace, 99, timedelta(), shared=False, is_dry=True), "older locks are not asked for"


def test_logs_checkpoints_indexes_and_copies_are_removed_with_their_owners(workspace: Workspace) -> None:
    old, new = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
    gone = [f"logs/{old}", "pretrain/a/step-000000001", "search/dropped", "registry/clozeline-encoder-9-abc"]
    kept = ["logs/by-hand", "search/encoder", "search/clozeline-encoder", "registry/clozeline-encoder-1-of the previ"]
    for name in (*gone, *kept):
        age(workspace.work / name)
    os.utime(workspace.work / "pretrain/a", (1.0, 1.0))
    young = [f"logs/{new}", "finetune/tag/b/step-000000001"]
    for name in young:
        (workspace.work / name).mkdir(parents=True)
    swept(workspace)
    assert [name for name in gone if (workspace.work / name).exists()] == []
    assert [name for name in (*kept, *young) if not (workspace.work / name).exists()] == []


def test_old_experiments_are_removed_with_the_text_that_no_other_reads(workspace: Workspace) -> None:
    kept = workspace.experiments
    for name in ("old", "sweep-old", "corpus-unread", "tokens-unread", "corpus-read", "new"):
        age(kept / name)
    links = {kept / "old/data/clean": "corpus-unread/data", kept / "new/data/clean": "corpus-read/data"}
    for link, text in links.items():
        link.parent.mkdir()
        link.symlink_to(kept / text)
    for link in (kept / "old/data/clean", kept / "old/data", kept / "old"):
        os.utime(link, (1.0, 1.0), follow_symlinks=False)
    stores = swept(workspace)
    assert {folder.name for folder in kept.iterdir()} == {"corpus-read", "new"}
    assert [stores[f"work: {name}"].num_kept for name in ("experiments", "text of experiments")] == [1, 1]


def test_a_sweep_killed_repeatedly_ends_like_an_uninterrupted_one(
    template: Path, pushed: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(pushed, shared=True)
    expected = files(pushed)

    workspace = with_remote(settled(template, tmp_path / "killed/project"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", workspace.defaults()["MLFLOW_TRACKING_URI"])
    command = [sys.executable, "-m", "tests.make.kills", "sweep", workspace.root, workspace.root.parent / "store"]
    left = json.loads(subprocess.check_output(command, cwd=PROJECT).splitlines()[-1])
    assert len(left) >= 4, "kills"
    assert not any(left), "dangling"
    assert files(workspace) == expected
    assert {night for night in KEPT if faults(workspace, night)} == set()


def test_runs_of_another_workspace_are_kept_and_block_the_sweep_of_the_remote(pushed: Workspace) -> None:
    client = MlflowClient()
    shutil.copy(pushed.root / "locks/forgotten", pushed.root / "dvc.lock")
    run = flow_run(pushed, client, "elsewhere", 0, "FINISHED", owner="a colleague")
    outcomes(pushed.root, "last")
    stores = swept(pushed, shared=True)
    assert faults(pushed, "forgotten") == []
    assert not stores["DVC remote: objects"].removals
    assert artifacts(pushed, "elsewhere"), "old, but not of this workspace"
    client.update_run(run, status="RUNNING")
    with pytest.raises(TransientError, match="another workspace is active") as caught:
        swept(pushed, shared=True)
    assert caught.value.problem.startswith("elsewhere ")


def test_a_dry_run_removes_nothing_and_shows_the_real_command(
    pushed: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pushed.root)
    before = files(pushed)
    with run_lock(pushed.lock_file):  # beside a run
        shown = CliRunner().invoke(app, ["gc", "--nights", "2", "--shared"])
    assert "`clozeline gc --nights 2 --min-age-hours 24 --shared --yes` removes these 0.0 MB" in shown.output
    assert files(pushed) == before


def _beside_a_run(workspace: Workspace, patch: pytest.MonkeyPatch, stack: ExitStack) -> None:
    patch.setattr(garbage, "run_lock", partial(run_lock, wait_seconds=0))
    stack.enter_context(run_lock(workspace.lock_file))


def _runs_of_another_project(workspace: Workspace, patch: pytest.MonkeyPatch, stack: ExitStack) -> None:
    (workspace.work / "identity.json").unlink()


def _store_of_files_away(workspace: Workspace, patch: pytest.MonkeyPatch, stack: ExitStack) -> None:
    patch.setattr(MlflowClient, "log_artifact", Mock(side_effect=ConnectionError("the store of the files is away")))
    Outbox(workspace.outbox).open("x", WAITING)
    Outbox(workspace.outbox).add_file("x", workspace.root / "dvc.lock")


def _lock_of_a_kept_run_missing(workspace: Workspace, patch: pytest.MonkeyPatch, stack: ExitStack) -> None:
    artifacts(workspace, "last but one")[0].unlink()


def _remote_unreachable(workspace: Workspace, patch: pytest.MonkeyPatch, stack: ExitStack) -> None:
    with_remote(workspace)
    shutil.rmtree(workspace.root.parent / "store")
    (workspace.root.parent / "store").write_text("a file, in which no folder can be made")


@pytest.mark.parametrize(
    ("hindrance", "refusal", "told"),
    [
        (_beside_a_run, TransientError, "another run is active"),
        (_runs_of_another_project, ArtifactError, "knows no run of this workspace"),
        (_store_of_files_away, TransientError, "(?s)lacks records.*the store of the files is away"),
        (_lock_of_a_kept_run_missing, ArtifactError, r"dvc\.lock of a kept night"),
        (_remote_unreachable, TransientError, "the remote does not answer"),
    ],
)
def test_nothing_is_removed_if_it_is_unknown_what_is_needed(
    workspace: Workspace,
    hindrance: Callable[[Workspace, pytest.MonkeyPatch, ExitStack], None],
    refusal: type[ClozelineError],
    told: str,
) -> None:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        hindrance(workspace, patch, stack)
        before = files(workspace)
        with pytest.raises(refusal, match=told):
            swept(workspace, shared=hindrance is _remote_unreachable)
        assert files(workspace) == before
    if hindrance is _store_of_files_away:
        assert Outbox(workspace.outbox).files("x"), "the outbox is no cache"
