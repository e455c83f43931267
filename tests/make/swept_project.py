"""A small project after six nights: real DVC, MLflow's records and artifacts, and two registered versions."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clozeline.records.record import Lock
from clozeline.registry.models import CHAMPION, PREVIOUS, Registered
from clozeline.registry.versions import Registry
from clozeline.system.workspace import Workspace
from clozeline.tracking.delivery import OUTBOX_RUN, WORKSPACE
from clozeline.tracking.mlflow import experiment_id, prepare
from clozeline.versions import reproduce
from tests.make.projects import graph_of, make_toy, stage

DVC_YAML = graph_of(
    upper=stage("python steps.py upper raw.txt upper.txt", ["raw.txt"], ["upper.txt"], params=["seed"]),
    pages=stage("python pages.py", ["upper.txt"], ["pages"]),
)
PAGES = """
from pathlib import Path
Path("pages").mkdir(exist_ok=True)
Path("pages/common.txt").write_text("in each night")
Path("pages/own.txt").write_text(Path("upper.txt").read_text())
"""
STAGES = ("upper", "pages")
# The text of each night, oldest first. With two nights kept, only the data of `forgotten` are not needed.
NIGHTS = ("of the previous", "forgotten", "of the champion", "last but one", "failed", "last")
KEPT = tuple(night for night in NIGHTS if night != "forgotten")
OWN = "this workspace"


def make_nights(folder: Path) -> Path:
    """Return a project after all `NIGHTS`. Copies of it get their own identity by `settled`."""
    root = make_toy(folder)
    (root / "dvc.yaml").write_text(DVC_YAML)
    (root / "pages.py").write_text(PAGES)
    workspace = Workspace(root)
    client = prepare(workspace.defaults()["MLFLOW_TRACKING_URI"])
    for number, night in enumerate(NIGHTS):
        outcomes(root, night)
        flow_run(workspace, client, night, number, "FAILED" if night == "failed" else "FINISHED")
    for night, alias in ((NIGHTS[0], PREVIOUS), (NIGHTS[2], CHAMPION)):
        register(workspace, client, night, alias)
    return root


def settled(template: Path, root: Path) -> Workspace:
    """Return a copy of the project at `root`, with the identity of the runs in it."""
    shutil.copytree(template, root)
    workspace = Workspace(root)
    identity = workspace.work / "identity.json"
    identity.touch()
    identity.write_text(json.dumps({"name": OWN, "root": str(root), "inode": identity.stat().st_ino}))
    return workspace


def outcomes(root: Path, text: str) -> list[str | None]:
    """Bring every stage up to date for `text`; return their outcomes."""
    (root / "raw.txt").write_text(text)
    with pytest.MonkeyPatch.context() as here:
        here.chdir(root)
        here.setenv("SHELL", "/bin/sh")
        return [reproduce.outcome_of(reproduce.reproduce(stage)) for stage in STAGES]


def flow_run(workspace: Workspace, client: MlflowClient, night: str, hour: int, status: str, owner: str = OWN) -> str:
    """Record a flow run that ended with the dvc.lock of now, and one of its stages; return its id."""
    experiment = experiment_id(client, workspace.defaults()["MLFLOW_TRACKING_URI"])
    lock = workspace.root / "dvc.lock"
    kept = workspace.root / "locks" / night
    kept.parent.mkdir(exist_ok=True)
    shutil.copy(lock, kept)
    md5 = hashlib.md5(lock.read_bytes(), usedforsecurity=False).hexdigest()
    stage_sha256 = Lock.read(lock).stages["upper"].sha256
    ids = []
    for name, own in ((night, {"dvc.lock_md5": md5}), (f"upper {night}", {"dvc.stage_sha256": stage_sha256})):
        tags = {**own, WORKSPACE: owner, OUTBOX_RUN: name}
        run = client.create_run(experiment, start_time=hour * 3_600_000 + 1, tags=tags, run_name=name)
        client.log_artifact(run.info.run_id, str(lock))
        client.set_terminated(run.info.run_id, status, end_time=hour * 3_600_000 + 2)
        ids.append(str(run.info.run_id))
    return ids[0]


def register(workspace: Workspace, client: MlflowClient, night: str, alias: str | None = None) -> Registered:
    run = client.create_run(experiment_id(client, workspace.defaults()["MLFLOW_TRACKING_URI"]))
    shutil.copy(workspace.root / "locks" / night, workspace.root / "locks/dvc.lock")
    client.log_artifact(run.info.run_id, str(workspace.root / "locks/dvc.lock"), "evidence")
    client.set_terminated(run.info.run_id)
    registry = Registry(client, workspace.defaults()["MLFLOW_TRACKING_URI"])
    source = f"{run.info.artifact_uri}/model"
    version = registry.register(
        "clozeline-encoder", source=source, run_id=run.info.run_id, package_sha256=night, description=""
    )
    if alias:
        client.set_registered_model_alias(version.name, alias, version.version)
    return version


def lock_of(root: Path, night: str) -> Lock:
    return Lock.read(root / "locks" / night)
