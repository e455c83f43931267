"""Forgetting a text removes it from every store, keeps it out, and marks the versions that come from it."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.orchestration.forgetting import Findings, forget
from clozeline.orchestration.import_items import items_file
from clozeline.records.finetune.scored_items import HeldOut
from clozeline.records.snapshot import FORGOTTEN_LOCK, KEY_FILE
from clozeline.system.errors import ArtifactError, DataError, TransientError
from clozeline.system.workspace import Workspace
from tests.make.forgetful_project import LETTER, MARK, make_project, night, other_texts, quoting, settled
from tests.make.kills import dangling
from tests.make.projects import PROJECT

Done = tuple[Workspace, Findings]
SOURCES = ["texts/mail.jsonl", "texts/more.txt"]
PLACES = ("project/.dvc/cache", "store/files", "project/data/raw", "project/data/clean", "project/data/tokens",
          "project/reports", "project/work/preprocess", "project/work/logs", "project/work/search",
          "project/work/mlflow/artifacts", "project/imports")  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_project(tmp_path_factory.mktemp("forgetful"))
    return root.rename(root.with_name("template"))


@pytest.fixture
def workspace(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    found = settled(template, tmp_path / "project")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", found.defaults()["MLFLOW_TRACKING_URI"])
    monkeypatch.chdir(found.root)
    return found


@pytest.fixture(scope="module")
def done(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    """A project that has forgotten the letter, and what was found."""
    workspace = settled(template, tmp_path_factory.mktemp("done") / "project")
    assert [place for place in PLACES if not any(path.startswith(place) for path in everywhere(workspace))] == []
    with pytest.MonkeyPatch.context() as here:
        here.setenv("MLFLOW_TRACKING_URI", workspace.defaults()["MLFLOW_TRACKING_URI"])
        yield workspace, forgotten(workspace)


def forgotten(workspace: Workspace, text: str = LETTER) -> Findings:
    return forget(workspace, text, 20_000, is_dry=False)


def everywhere(workspace: Workspace) -> list[str]:
    """Return every file of the project and its remote that quotes the letter, but the sources."""
    return [path for path in quoting(workspace.root.parent) if path.removeprefix("project/") not in SOURCES]


def test_no_byte_of_it_is_left_in_any_store(done: Done) -> None:
    workspace, _ = done
    assert everywhere(workspace) == []
    assert (workspace.logs / "one/pretrain.log").exists(), "a log that does not quote it stays"
    assert (workspace.root / "reports/note.txt").exists(), "only what looks like the list of a folder leads to it"


def test_the_next_run_leaves_it_out_in_each_format_and_keeps_the_rest_of_a_longer_text(
    done: Done, tmp_path: Path
) -> None:
    root = shutil.copytree(done[0].root, tmp_path / "project")
    copy = f'text\n"{LETTER.upper()}"\n"another text with more than eight words in it"\n'
    (root / "texts/again.csv").write_text(copy)
    assert "import@mini" in night(root), "the package is made again without the items that quote it"
    assert [path for path in everywhere(Workspace(root)) if "again" not in path] == []
    texts = pq.read_table(root / "data/clean")["text"].to_pylist()
    assert {"A long story. And so it ends.", "another text with more than eight words in it"} <= {*texts}
    assert MARK in (root / "texts/mail.jsonl").read_text().lower(), "the source is the user's"


def test_every_version_that_comes_from_it_is_marked_and_items_of_imports_are_removed(done: Done) -> None:
    versions = {f"{one.version.name} {one.version.version}": one for one in done[1].versions}
    trained = {name: one.was_trained_on for name, one in versions.items()}
    assert trained == {"clozeline-encoder 1": True, "clozeline-encoder 2": True, "clozeline-mini 1": False}
    assert versions["clozeline-encoder 2"].aliases == ("champion",)
    assert versions["clozeline-mini 1"].holding == versions["clozeline-mini 1"].removed == ("imports/mini.jsonl",)
    tags = MlflowClient().get_model_version("clozeline-encoder", "2").tags
    assert tags["clozeline.trained_on_forgotten"] == "true"
    assert {"data/raw", "data/clean/train.parquet", "data/tokens"} <= set(tags["clozeline.forgotten"].split())
    assert "models/encoder" not in tags["clozeline.forgotten"].split(), "weights are not searched"
    assert HeldOut.lines(done[0].root / items_file("mini")) == [HeldOut(text=text) for text in other_texts(9, 20)]
    assert [store.num_removable for store in done[1].stores if store.name == "imports: items"] == [2]
    assert "imports/mini.jsonl" not in " ".join(done[1].left)


def test_the_tombstone_says_nothing_without_the_key_which_only_its_owner_can_read(done: Done, tmp_path: Path) -> None:
    lock, key = done[0].root / FORGOTTEN_LOCK, done[0].root / KEY_FILE
    assert MARK not in lock.read_text()
    assert key.stat().st_mode & 0o077 == 0
    first = lock.read_text()
    forgotten(done[0])
    assert lock.read_text() == first, "a second time adds nothing"
    with pytest.raises(DataError, match="too few"):
        forgotten(done[0], "Dear Miss, please send the parcels")
    copy = Workspace(shutil.copytree(done[0].root, tmp_path / "project"))
    (copy.root / KEY_FILE).unlink()
    with pytest.raises(ArtifactError, match=KEY_FILE):
        forgotten(copy)


def test_a_dry_run_changes_nothing_and_says_where_it_is(workspace: Workspace) -> None:
    other = "None of the texts of this project has these nine words in it."
    before = everywhere(workspace)
    shown, nowhere = (CliRunner().invoke(app, ["forget", "-"], input=text) for text in (LETTER, other))
    assert (shown.exception, nowhere.exception) == (None, None), shown.output
    for told in (
        "data/clean/train.parquet",
        "clozeline-encoder version 2",
        "texts/mail.jsonl: a source",
        "--yes` does it",
    ):
        assert told in shown.output
    assert "in none of these stores" in nowhere.output
    assert everywhere(workspace) == before
    assert not (workspace.root / KEY_FILE).exists()


def test_nothing_is_removed_while_the_remote_is_unreachable(workspace: Workspace) -> None:
    shutil.rmtree(workspace.root.parent / "store")
    (workspace.root.parent / "store").write_text("a file, in which no folder can be made")
    before = everywhere(workspace)
    with pytest.raises(TransientError, match="the remote does not answer"):
        forgotten(workspace)
    assert everywhere(workspace) == before
    assert not (workspace.root / KEY_FILE).exists()


def test_a_killed_one_is_finished_by_the_next(workspace: Workspace) -> None:
    command = [sys.executable, "-m", "tests.make.kills", "forget", workspace.root, LETTER]
    assert json.loads(subprocess.check_output(command, cwd=PROJECT).splitlines()[-1]) >= 3, "kills"
    assert everywhere(workspace) == []
    assert dangling(workspace.root / ".dvc/cache") == dangling(workspace.root.parent / "store") == []
    assert not (workspace.work / "forgetting.json").exists()


def relinked(root: Path, cache: Path, link: str) -> None:
    """Let the project in `root` use `cache`, and make its outputs links to it."""
    (root / ".dvc/config.local").write_text(f"[cache]\n    dir = {cache}\n    type = {link}\n")
    command = [sys.executable, "-m", "dvc", "checkout", "--relink", "--force"]
    subprocess.run(command, cwd=root, check=True, capture_output=True)


def damaged(cache: Path) -> list[Path]:
    """Return the objects whose content does not match their name."""
    objects = [path for path in (cache / "files/md5").rglob("*") if path.is_file()]
    names = {path: f"{path.parent.name}{path.name}".removesuffix(".dir") for path in objects}
    return [path for path, name in names.items() if hashlib.md5(path.read_bytes()).hexdigest() != name]


@pytest.mark.parametrize("link", ["hardlink", "symlink"])
def test_in_clones_that_share_a_cache_nothing_is_written_through_a_link(
    link: str, workspace: Workspace, tmp_path: Path
) -> None:
    """Outputs are read-only links to the cache, which root can write through."""
    cache, clone = tmp_path / "cache", tmp_path / "clone"
    (workspace.root / ".dvc/cache").rename(cache)
    outputs = ("work", "data", "models", "dist", "metrics", "plots", "reports")
    shutil.copytree(workspace.root, clone, ignore=shutil.ignore_patterns(*outputs))
    for root in (workspace.root, clone):
        relinked(root, cache, link)
        train = root / "data/clean/train.parquet"
        assert train.is_symlink() if link == "symlink" else train.stat().st_nlink > 1
    forgotten(workspace)
    for name in (FORGOTTEN_LOCK, KEY_FILE):
        shutil.copy(workspace.root / name, clone)
    forgotten(Workspace(clone))
    assert damaged(cache) == []
    night(clone)
    assert MARK not in str(pq.read_table(clone / "data/clean").to_pydict()).lower()
    assert damaged(cache) == []
    assert [path for path in everywhere(workspace) if not path.startswith("clone/texts/")] == []
