"""What one machine makes and pushes, a fresh clone on another restores, serves, and verifies from any night."""

import shutil
from pathlib import Path

import pytest

from clozeline.inference import package
from clozeline.registry.lineage import trace, verify
from clozeline.registry.publishing import Evidence, Publisher
from clozeline.registry.versions import fetch_package
from clozeline.system.workspace import Workspace
from clozeline.versions import remote, reproduce
from clozeline.versions.graph import read_stage_graph
from tests.make.projects import make_release_project, retrain

NAME = "clozeline-encoder"
NIGHTS = ("one", "one two", "one two three")


@pytest.fixture
def first_machine(tmp_path: Path, encoder_package: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A project after three nights, each of which released a version and pushed; both machines use its registry."""
    (tmp_path / "store").mkdir()
    workspace = Workspace(tmp_path / "first" / "project")
    address = workspace.defaults()["MLFLOW_TRACKING_URI"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    root = make_release_project(workspace.root, {"encoder": encoder_package, "library": encoder_package})
    remote.add(root, str(tmp_path / "store"))
    publisher = Publisher(address)
    for night in NIGHTS:
        retrain(root, night)
        evidence = Evidence(files={"dvc.lock": root / "dvc.lock"}, tags={})
        publisher.registry.promote(publisher.publish(root / "dist/encoder", NAME, evidence))
        remote.push(root)
    return workspace


def clone(root: Path, target: Path) -> Path:
    """Copy what git holds of the project."""
    made = shutil.ignore_patterns("cache", "tmp", "data", "models", "dist", "reports", "work")
    return Path(shutil.copytree(root, target, ignore=made))


def test_a_fresh_clone_restores_every_stage_serves_the_champion_and_verifies_older_nights(
    first_machine: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Workspace(clone(first_machine.root, tmp_path / "second"))
    shutil.rmtree(first_machine.root / ".dvc/cache")  # everything comes from the remote
    monkeypatch.chdir(second.root)
    monkeypatch.setenv("SHELL", "/bin/sh")
    assert remote.fetch_runs(second.root)
    monkeypatch.setenv(reproduce.RESTORE_FROM_REMOTE, "1")
    stages = [node.name for node in read_stage_graph(second.root)]
    outcomes = {name: reproduce.outcome_of(reproduce.reproduce(name)) for name in stages}
    assert outcomes == dict.fromkeys(stages, "restored")
    assert (second.root / "dvc.lock").read_bytes() == (first_machine.root / "dvc.lock").read_bytes()
    assert package.load(second.root / "dist/encoder").manifest.versions["corpus"] == NIGHTS[-1]
    served = fetch_package(f"models:/{NAME}@champion", second)
    assert served.version.version == "3"
    assert package.load(served.folder).manifest.versions["corpus"] == NIGHTS[-1]
    for version in ("1", "2", "3"):
        verify(trace(f"models:/{NAME}/{version}", second), second)
