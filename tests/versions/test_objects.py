"""Objects are found by their hash, and a sweep keeps what git, the given locks and young files lead to."""

import hashlib
import os
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from clozeline.records.record import Lock
from clozeline.system.errors import ArtifactError, ParamsError
from clozeline.system.files import SweptStore, sweep
from clozeline.versions import remote
from clozeline.versions.objects import Objects, Stored
from tests.make.projects import make_toy
from tests.make.stores import BUCKET, ObjectStore
from tests.make.swept_project import DVC_YAML, PAGES, outcomes


def md5_of(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def test_a_stored_file_is_found_after_the_workspace_copy_changed(toy: Path) -> None:
    file = toy / "start.lock"
    file.write_text("first")
    with Objects.open(toy) as objects:
        objects.keep(file)
        objects.keep(file)
        file.write_text("second")
        assert objects.fault_of("start.lock", md5_of(b"first"), commit=None) is None
        assert objects.fault_of("start.lock", md5_of(b"third"), commit=None)


def test_a_changed_file_has_another_hash_although_its_size_and_time_are_those_that_dvc_noted(toy: Path) -> None:
    with Objects.open(toy) as objects:
        file = toy / "noted.txt"
        file.write_bytes(b"one")
        objects.keep(file)
        noted, before = file.stat(), objects.md5_of(file)
        file.chmod(0o600)
        with file.open("r+b") as opened:
            opened.write(b"two")
        os.utime(file, ns=(noted.st_atime_ns, noted.st_mtime_ns))
        assert (before, objects.md5_of(file)) == (md5_of(b"one"), md5_of(b"two"))


def test_a_commit_of_the_registry_is_no_option_of_git(toy: Path, tmp_path: Path) -> None:
    git(toy, "init", "--quiet")
    git(toy, "commit", "--quiet", "--allow-empty", "--message", "toy")
    with Objects.open(toy) as objects:
        assert objects.fault_of("raw.txt", md5_of(b"missing"), commit=f"--output={tmp_path}/planted")
    assert not list(tmp_path.glob("planted*"))


NO_AGE = datetime(2100, 1, 1, tzinfo=UTC)
LONG_AGO = (1.0, 1.0)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Project whose stages ran for `one`, then for `two`."""
    root = make_toy(tmp_path_factory.mktemp("template"))
    (root / "dvc.yaml").write_text(DVC_YAML)
    (root / "pages.py").write_text(PAGES)
    for text in ("one", "two"):
        outcomes(root, text)
        shutil.copy(root / "dvc.lock", root.parent / text)
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "project"))


@pytest.fixture
def one(template: Path) -> Lock:
    return Lock.read(template.parent / "one")


def swept(root: Path, *locks: Lock, before: datetime = NO_AGE, shared: bool = False) -> dict[str, SweptStore]:
    with Stored.open(root, shared=shared) as stored:
        stores = stored.without_old(locks, before)
        sweep(stores)
    return {store.name: store for store in stores}


def has(root: Path, lock: Lock) -> bool:
    """Whether every output in `lock` is available."""
    with Objects.open(root) as objects:
        outs = [str(out.md5) for stage in lock.stages.values() for out in stage.outs]
        return not any(objects.fault_of("no such file", md5, None) for md5 in outs)


def cached(root: Path, md5: str | None) -> Path:
    return root / ".dvc/cache/files/md5" / str(md5)[:2] / str(md5)[2:]


def runs(root: Path) -> list[Path]:
    return [path for path in (root / ".dvc/cache/runs").rglob("*") if path.is_file()]


def git(root: Path, *command: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *identity, *command], cwd=root, check=True, capture_output=True)


def test_data_of_the_working_tree_and_of_the_given_locks_are_kept(root: Path, one: Lock) -> None:
    assert not any(store.removals for store in swept(root, one).values())
    assert has(root, one)
    assert swept(root)["DVC cache: objects"].num_removable == 2
    assert not has(root, one)
    assert has(root, Lock.read(root / "dvc.lock"))


def commit(root: Path, lock: Path) -> None:
    """Commit `lock` as the project's dvc.lock; make the project a git repository first."""
    config = root / ".dvc/config"
    config.write_text(config.read_text().replace("no_scm = true", ""))
    shutil.copy(lock, root / "dvc.lock")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "dvc.yaml", "dvc.lock", "params.yaml", ".dvc/config")
    git(root, "commit", "-qm", lock.name)


def test_data_of_tags_branches_stashes_and_a_commit_without_a_branch_are_kept_until_these_are_gone(
    root: Path, one: Lock, template: Path
) -> None:
    commit(root, template.parent / "one")
    git(root, "branch", "kept")
    git(root, "update-ref", "refs/remotes/origin/colleague", "kept")
    git(root, "tag", "v1")
    commit(root, template.parent / "two")
    shutil.copy(template.parent / "one", root / "dvc.lock")
    git(root, "stash")
    (root / "params.yaml").write_text("seed: 2")
    git(root, "stash")
    for needed_by, gone in (
        ("a branch", ("branch", "-D", "kept")),
        ("a tag", ("tag", "-d", "v1")),
        ("a branch that was fetched", ("update-ref", "-d", "refs/remotes/origin/colleague")),
        ("the older stash", ("stash", "clear")),
    ):
        swept(root)
        assert has(root, one), f"{needed_by} needs it"
        git(root, *gone)
    git(root, "checkout", "-q", "--detach")
    commit(root, template.parent / "one")
    shutil.copy(template.parent / "two", root / "dvc.lock")
    swept(root)
    assert has(root, one), "the present commit needs it"
    git(root, "checkout", "-qf", "main")
    swept(root)
    assert not has(root, one)


def test_a_branch_that_dvc_cannot_read_stops_the_sweep(root: Path, one: Lock, template: Path) -> None:
    commit(root, template.parent / "two")
    (root / "dvc.yaml").write_text("stages: [none]")
    git(root, "checkout", "-qb", "broken")
    git(root, "commit", "-qam", "broken")
    git(root, "checkout", "-q", "main")
    with pytest.raises(ParamsError, match="DVC cannot read what git records") as caught:
        swept(root)
    assert "at refs/heads/broken, " in caught.value.problem
    assert has(root, one)


def test_old_files_of_a_recent_folder_and_outputs_of_a_recent_run_are_kept(root: Path, one: Lock) -> None:
    folder = one.stages["pages"].outs[0].md5
    for path in (root / ".dvc/cache").rglob("*"):
        if path.is_file() and path != cached(root, folder):
            os.utime(path, LONG_AGO)
    before = datetime(2000, 1, 1, tzinfo=UTC)
    stores = swept(root, before=before)
    assert stores["DVC cache: objects"].num_removable == 0, "the text is a file of the young folder, too"
    (run,) = (path for path in runs(root) if str(folder) in path.read_text())
    os.utime(cached(root, folder), LONG_AGO)
    os.utime(run)
    assert swept(root, before=before)["DVC cache: objects"].num_removable == 0
    os.utime(run, LONG_AGO)
    assert swept(root, before=before)["DVC cache: objects"].num_removable == 2


def test_a_damaged_file_list_is_refused_unless_the_remote_has_it(root: Path, tmp_path: Path) -> None:
    remote.add(root, str(tmp_path / "store"))
    remote.push(root)
    file = cached(root, Lock.read(root / "dvc.lock").stages["pages"].outs[0].md5)
    file.chmod(0o644)
    file.write_text("[]")
    before = sorted((root / ".dvc/cache").rglob("*"))
    with pytest.raises(ArtifactError, match="list of files of a folder that is still needed is damaged"):
        swept(root)
    assert sorted((root / ".dvc/cache").rglob("*")) == before
    file.unlink()
    swept(root, shared=True)
    assert has(root, Lock.read(root / "dvc.lock")), "the remote's list named the files of the cache"


def test_damaged_runs_are_removed_with_their_empty_folders_which_break_dvc(root: Path) -> None:
    for run in runs(root):
        run.write_text("outs: [")
    assert swept(root)["DVC cache: runs"].num_removable == 4
    assert [folder for folder in (root / ".dvc/cache/runs").rglob("*") if folder.name != folder.name[:2]] == []
    assert outcomes(root, "one") == ["executed", "executed"]


def test_a_run_is_removed_with_the_first_of_its_outputs(root: Path, one: Lock) -> None:
    """DVC would treat the run as complete and restore only the files that are left."""
    (needed,) = Lock.read(root / "dvc.lock").stages["upper"].outs
    folder = str(one.stages["pages"].outs[0].md5)
    (run,) = (path for path in runs(root) if folder in path.read_text())
    record = YAML(typ="safe").load(run.read_text())
    record["outs"].append({"path": needed.path, "hash": "md5", "md5": needed.md5})
    with run.open("w") as file:
        YAML(typ="safe").dump(record, file)
    swept(root)
    assert not run.exists()


def test_a_cache_outside_the_project_is_swept_only_together_with_the_remote(root: Path, tmp_path: Path) -> None:
    shutil.move(root / ".dvc/cache", tmp_path / "cache")
    shutil.copy(root / ".dvc/config", root.parent)
    with (root / ".dvc/config").open("a") as config:
        config.write(f"[cache]\n    dir = {tmp_path / 'cache'}\n")
    assert swept(root) == {}
    shutil.copy(root.parent / "config", root / ".dvc/config")
    (root / ".dvc/cache").symlink_to(tmp_path / "cache")
    assert swept(root) == {}
    assert swept(root, shared=True)["DVC cache: objects"].num_removable == 2


def test_a_bucket_is_swept_by_its_own_times_and_a_push_restores_it(root: Path, one: Lock, store: ObjectStore) -> None:
    remote.add(root, f"s3://{BUCKET}/project", store.url)
    remote.push(root)
    before = store.names()
    shutil.copytree(root / ".dvc/cache", root.parent / "cache")
    shutil.rmtree(root / ".dvc/cache/files")  # the bucket alone knows the files of the folders
    for path in (root / ".dvc/cache").rglob("*"):
        os.utime(path, LONG_AGO)
    swept(root, one, before=datetime(2000, 1, 1, tzinfo=UTC), shared=True)
    assert store.names() == before, "its objects are young"
    swept(root, shared=True)
    assert len(before - store.names()) == 4
    shutil.rmtree(root / ".dvc/cache")
    (root.parent / "cache").rename(root / ".dvc/cache")
    assert remote.push(root) == 2
    assert store.names() == before
