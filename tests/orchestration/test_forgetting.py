"""Forgetting a text removes it from every store, keeps it out, and marks the versions that come from it."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.orchestration.forgetting import Findings, forget
from clozeline.orchestration.import_items import items_file
from clozeline.records.finetune.scored_items import HeldOut
from clozeline.records.record import Lock
from clozeline.records.snapshot import FORGOTTEN_LOCK, KEY_FILE
from clozeline.system.errors import ArtifactError, DataError, TransientError
from clozeline.system.workspace import Workspace
from clozeline.versions.objects import Objects
from tests.make.forgetful_project import LETTER, MARK, make_project, night, quoting, settled
from tests.make.projects import PROJECT

SOURCES = ["texts/mail.jsonl", "texts/more.txt"]


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


def forgotten(workspace: Workspace, text: str = LETTER, *, is_dry: bool = False) -> Findings:
    return forget(workspace, text, 20_000, is_dry=is_dry)


def everywhere(workspace: Workspace) -> list[str]:
    """Return every file of the project and its remote that quotes the letter, but the sources."""
    return [path for path in quoting(workspace.root.parent) if path.removeprefix("project/") not in SOURCES]


def test_no_byte_of_it_is_left_in_any_store(workspace: Workspace) -> None:
    before = everywhere(workspace)
    places = ("project/.dvc/cache", "store/files", "project/data/raw", "project/data/clean", "project/data/tokens",
              "project/reports", "project/work/preprocess", "project/work/logs", "project/work/search",
              "project/work/mlflow/artifacts", "project/imports")  # fmt: skip
    assert [place for place in places if not any(path.startswith(place) for path in before)] == []
    forgotten(workspace)
    assert everywhere(workspace) == []
    assert (workspace.logs / "one/pretrain.log").exists(), "a log that does not quote it stays"


def test_json_files_among_the_outputs_are_not_taken_for_the_lists_of_folders(workspace: Workspace) -> None:
    """DVC's run cache keeps metrics and plots beside the lists of folders, which are JSON, too."""
    stages = Lock.read(workspace.root / "dvc.lock").stages
    with Objects.open(workspace.root) as objects:
        outs = [out for name in ("preprocess", "pretrain") for out in stages[name].outs if out.path.endswith(".json")]
        assert [objects.fault_of("no such file", str(out.md5), None) for out in outs] == [None] * 3
    forgotten(workspace)
    assert not (workspace.root / "metrics/preprocess.json").exists(), "it was counted with the letter"
    assert (workspace.root / "reports/note.txt").exists(), "only what looks like a list leads to it"


def test_the_next_run_leaves_it_out_and_keeps_the_rest_of_a_longer_text(workspace: Workspace) -> None:
    forgotten(workspace)
    night(workspace.root)
    assert everywhere(workspace) == []
    texts = pq.read_table(workspace.root / "data/clean")["text"].to_pylist()
    assert "A long story. And so it ends." in texts
    assert MARK in (workspace.root / "texts/mail.jsonl").read_text().lower(), "the source is the user's"


def test_a_copy_that_arrives_later_in_another_format_is_left_out(workspace: Workspace) -> None:
    forgotten(workspace)
    (workspace.root / "texts/again.csv").write_text(
        f'text\n"{LETTER.upper()}"\n"another text with more than eight words in it"\n'
    )
    night(workspace.root)
    assert [path for path in everywhere(workspace) if "again" not in path] == []


def test_every_version_that_comes_from_it_is_marked_and_its_lineage_says_forgotten(workspace: Workspace) -> None:
    found = forgotten(workspace)
    versions = {f"{one.version.name} {one.version.version}": one for one in found.versions}
    trained = {name: one.was_trained_on for name, one in versions.items()}
    assert trained == {"clozeline-encoder 1": True, "clozeline-encoder 2": True, "clozeline-mini 1": False}
    assert versions["clozeline-encoder 2"].aliases == ("champion",)
    assert versions["clozeline-mini 1"].holding == versions["clozeline-mini 1"].removed == ("imports/mini.jsonl",)
    tags = MlflowClient().get_model_version("clozeline-encoder", "2").tags
    assert tags["clozeline.trained_on_forgotten"] == "true"
    assert {"data/raw", "data/clean/train.parquet", "data/tokens"} <= set(tags["clozeline.forgotten"].split())
    assert "models/encoder" not in tags["clozeline.forgotten"].split(), "weights are not searched"


def test_items_of_an_import_that_quote_it_are_removed_and_the_others_stay(workspace: Workspace) -> None:
    items = workspace.root / items_file("mini")
    before = HeldOut.lines(items)
    found = forgotten(workspace)
    assert HeldOut.lines(items) == before[:-2]
    assert [store.num_removable for store in found.stores if store.name == "imports: items"] == [2]
    assert "imports/mini.jsonl" in found.holding
    assert "imports/mini.jsonl: a source" not in found.left
    assert "import@mini" in night(workspace.root), "the package is made again without them"


def test_a_dry_run_changes_nothing_and_says_where_it_is(workspace: Workspace) -> None:
    (workspace.root / "letter.txt").write_text(LETTER)
    before = everywhere(workspace)
    shown = CliRunner().invoke(app, ["forget", "letter.txt"])
    assert shown.exception is None, shown.output
    assert "data/clean/train.parquet" in shown.output
    assert "clozeline-encoder version 2" in shown.output
    assert "texts/mail.jsonl: a source" in shown.output
    assert "`clozeline forget letter.txt --yes` does it" in shown.output
    assert everywhere(workspace) == before
    assert not (workspace.root / KEY_FILE).exists()


def test_it_can_be_given_on_standard_input(workspace: Workspace) -> None:
    shown = CliRunner().invoke(app, ["forget", "-", "--yes"], input=LETTER)
    assert shown.exception is None, shown.output
    assert everywhere(workspace) == []


def test_the_tombstone_says_nothing_without_the_key_which_only_its_owner_can_read(workspace: Workspace) -> None:
    forgotten(workspace)
    lock, key = workspace.root / FORGOTTEN_LOCK, workspace.root / KEY_FILE
    assert MARK not in lock.read_text()
    assert key.stat().st_mode & 0o077 == 0
    first = lock.read_text()
    forgotten(workspace)
    assert lock.read_text() == first, "a second time adds nothing"
    key.unlink()
    with pytest.raises(ArtifactError, match=KEY_FILE):
        forgotten(workspace)


def test_a_text_that_is_nowhere_is_said_to_be_nowhere(workspace: Workspace) -> None:
    (workspace.root / "other.txt").write_text("None of the texts of this project has these nine words in it.")
    shown = CliRunner().invoke(app, ["forget", "other.txt"])
    assert "in none of these stores" in shown.output
    assert not any(store.removals for store in forgotten(workspace, "None of them has these nine words in it.").stores)


@pytest.mark.parametrize("text", ["", "the", "Dear Miss, please send the parcels"])
def test_a_short_text_is_refused(workspace: Workspace, text: str) -> None:
    with pytest.raises(DataError, match="too few"):
        forgotten(workspace, text)


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
    assert not (workspace.work / "forgetting.json").exists()
    night(workspace.root)
    assert everywhere(workspace) == []


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
    for root in (workspace.root, clone):
        night(root)
        assert MARK not in str(pq.read_table(root / "data/clean").to_pydict()).lower()
    assert damaged(cache) == []
    assert [path for path in everywhere(workspace) if not path.startswith("clone/texts/")] == []
