"""Stage `snapshot` under DVC, which removes its output before each run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.repo import Repo

from clozeline.records.record import Lock
from clozeline.versions.objects import Objects
from clozeline.versions.reproduce import AGAIN, outcome_of

STAGE = """
stages:
  snapshot:
    cmd: python -m clozeline stage snapshot source=texts forgotten=forgotten.lock out=data/raw
    deps: [texts]
    params: [preprocess.source]
    outs: [data/raw]
"""


@pytest.fixture
def project(toy: Path) -> Path:
    """Project whose source is the folder `texts` with one file."""
    (toy / "dvc.yaml").write_text(STAGE)
    params = (toy / "params.yaml").read_text()
    changed = params.replace("kind: python-docs", "kind: files").replace("path: corpus.lock", "path: texts")
    (toy / "params.yaml").write_text(changed)
    (toy / "texts").mkdir()
    (toy / "texts" / "b.txt").write_text("first")
    return toy


def snapshot(root: Path, *options: str) -> tuple[str | int, str]:
    """Bring the stage up to date; return its outcome, or its exit code if it failed, and what it said."""
    command = [sys.executable, "-m", "clozeline.versions.reproduce", "snapshot", *options]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return outcome_of(done.returncode) or done.returncode, done.stdout + done.stderr


def order(root: Path) -> list[tuple[int, str]]:
    manifest = json.loads((root / "data/raw/manifest.json").read_text())
    return [(file["snapshot"], file["name"]) for file in manifest["files"]]


def test_a_new_snapshot_extends_the_order_and_an_older_or_unreadable_one_leaves_the_last_complete(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is a folder that DVC imported."""
    monkeypatch.chdir(project)
    shutil.move(project / "texts", project.parent / "origin")
    with Repo(str(project)) as repo:
        repo.imp_url(str(project.parent / "origin"), out="texts")
    assert snapshot(project)[0] == "executed"
    (first,) = Lock.read(project / "dvc.lock").stages["snapshot"].outs
    (project / "texts.dvc").unlink()
    (project / "texts" / "a.txt").write_text("second")
    for options, outcome in (((), "executed"), ((), "unchanged"), ((AGAIN,), "executed")):
        assert snapshot(project, *options)[0] == outcome
        assert order(project) == [(1, "b.txt"), (2, "a.txt")]
    before = Lock.read(project / "dvc.lock")
    for file in (project / "texts").iterdir():
        file.unlink()
    outcome, said = snapshot(project)
    assert (outcome, "no file matches" in said, "`preprocess.source.path`" in said) == (3, True, True)
    assert (order(project), Lock.read(project / "dvc.lock")) == ([(1, "b.txt"), (2, "a.txt")], before)
    with Objects.open(project) as objects:
        assert objects.fault_of("data/raw", str(first.md5), None) is None

    for folder in (".dvc/cache", "data"):
        shutil.rmtree(project / folder)
    for name in ("a.txt", "b.txt"):
        (project / "texts" / name).write_text(name)
    outcome, said = snapshot(project)
    assert (outcome, "dvc pull data/raw" in said) == ("executed", True)
    assert order(project) == [(1, "a.txt"), (1, "b.txt")], "a clone without its cache starts a new order"
