"""The adapter's assumptions about the installed DVC; a failing test shows what an upgrade changed."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dvc.lock import LockError, make_lock
from dvc.repo import Repo
from dvc.rwlock import RWLockFileCorruptedError

from clozeline.records.record import Lock
from clozeline.system.errors import StorageError
from clozeline.versions import reproduce
from clozeline.versions.graph import fingerprint, read_stage_graph
from clozeline.versions.objects import Objects
from clozeline.versions.project import open_project, require_writable_cache
from clozeline.versions.reproduce import EXIT_CODES, outcome_of


def run(root: Path, name: str = "upper") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", reproduce.__name__, name]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def ended(root: Path, name: str = "upper") -> str | int:
    """Run a stage; return its outcome, or its exit code if it failed."""
    with pytest.MonkeyPatch.context() as here:
        here.chdir(root)
        here.setenv("SHELL", "/bin/sh")
        code = reproduce.reproduce(name)
    return outcome_of(code) or code


def changed(root: Path) -> list[str]:
    return [node.name for node in read_stage_graph(root) if node.is_changed]


def test_a_stage_is_executed_then_unchanged_then_restored_after_its_input_is_reverted(toy: Path) -> None:
    assert [ended(toy), ended(toy)] == ["executed", "unchanged"]
    (toy / "raw.txt").write_text("three")
    assert ended(toy) == "executed"
    (toy / "raw.txt").write_text("one two")
    assert ended(toy) == "restored"
    assert (toy / "upper.txt").read_text() == "ONE TWO"
    (toy / "upper.txt").unlink()
    assert ended(toy) == "restored", "its missing output is in the cache"
    shutil.rmtree(toy / ".dvc/cache/files")
    (toy / "upper.txt").unlink()
    assert ended(toy) == "executed", "the run cache names an uncached output"


def test_every_stage_runs_in_any_order_and_is_outdated_below_an_outdated_one(toy: Path) -> None:
    """DVC reports only the first stage as changed, because the inputs of the others are not yet made again."""
    names = ["upper", "count", "sign@ada", "sign@alan"]
    for name in ("upper", "sign@alan", "count", "sign@ada"):
        assert ended(toy, name) == "executed"
    assert list(Lock.read(toy / "dvc.lock").stages) == names, "dvc.lock has the order of dvc.yaml"
    assert changed(toy) == []
    (toy / "raw.txt").write_text("three")
    assert changed(toy) == names


@pytest.mark.parametrize("torn", ["", '{"write": {"upper'])
def test_a_list_of_paths_in_use_that_a_killed_process_left_half_written_is_removed(
    toy: Path, torn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy)
    ended(toy)
    rwlock = toy / ".dvc/tmp/rwlock"
    rwlock.write_text(torn)
    with Repo(str(toy)) as repo, pytest.raises(RWLockFileCorruptedError):
        repo.status()
    assert ended(toy) == "unchanged"
    rwlock.write_text(torn)
    assert "upper" not in changed(toy)


def write_user(toy: Path, pid: int, written_seconds_ago: float = 0.0) -> Path:
    """Enter process `pid` into DVC's list of the paths in use, as the writer of one file and a reader of another."""
    user = {"pid": pid, "cmd": "dvc repro"}
    rwlock = toy / ".dvc/tmp/rwlock"
    rwlock.parent.mkdir(parents=True, exist_ok=True)
    rwlock.write_text(json.dumps({"write": {str(toy / "upper.txt"): user}, "read": {str(toy / "raw.txt"): [user]}}))
    os.utime(rwlock, times=(time.time() - written_seconds_ago,) * 2)
    return rwlock


def test_ended_processes_are_taken_out_of_the_list_of_paths_in_use_and_living_ones_stay(toy: Path) -> None:
    ended(toy)
    with subprocess.Popen(["true"]) as killed:
        pass
    for pid, lasting in ((killed.pid, {"write": {}, "read": {}}), (os.getpid(), None)):
        rwlock = write_user(toy, pid)
        before = json.loads(rwlock.read_text())
        with open_project(toy):
            assert json.loads(rwlock.read_text()) == (lasting or before)
    ran = run(toy)
    assert ran.returncode == 75, "a file that another command writes is a transient error"
    assert "error: another DVC command holds a lock that stage `upper` needs" in ran.stderr
    with Repo(str(toy)) as holder, holder.lock, Repo(str(toy)) as other, pytest.raises(LockError), other.lock:
        pass
    rwlock.write_text("")
    with make_lock(str(toy / ".dvc/tmp/rwlock.lock"), tmp_dir=str(toy / ".dvc/tmp")), open_project(toy):
        assert rwlock.exists(), "its writer lives"


def test_a_process_that_only_has_the_number_of_a_killed_one_blocks_nothing(toy: Path) -> None:
    """Numbers are used again, in containers soon; DVC alone would refuse."""
    with subprocess.Popen(["sleep", "60"]) as other:
        write_user(toy, other.pid, written_seconds_ago=3600)
        try:
            assert ended(toy) == "executed"
        finally:
            other.kill()


KILLED_IN_THE_WRITE_OF_THE_LOCK = """
import io, os, sys
from ruamel.yaml import YAML
from clozeline.versions.reproduce import reproduce

whole = YAML.dump

def half(self, data, stream, **options):
    if not str(getattr(stream, "name", "")).endswith("/dvc.lock"):
        return whole(self, data, stream, **options)
    text = io.StringIO()
    whole(self, data, text, **options)
    stream.write(text.getvalue()[: len(text.getvalue()) // 2])
    stream.flush()
    os.kill(os.getpid(), 9)

YAML.dump = half
reproduce("count")
"""


def test_a_kill_while_dvc_writes_its_lock_leaves_the_old_one_whole(toy: Path) -> None:
    ended(toy)
    before = (toy / "dvc.lock").read_bytes()
    killed = subprocess.run([sys.executable, "-c", KILLED_IN_THE_WRITE_OF_THE_LOCK], cwd=toy, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (toy / "dvc.lock").read_bytes() == before
    assert ended(toy, "count") in EXIT_CODES
    whole = (toy / "dvc.lock").read_bytes()
    assert len(whole) > len(before)
    assert not list(toy.glob(".dvc.lock*")), "the folder of the killed writer is removed"
    (toy / "dvc.lock").unlink()
    assert [ended(toy), ended(toy, "count")] == ["restored", "restored"], "a lock that is gone costs no stage"
    assert (toy / "dvc.lock").read_bytes() == whole


KILLING_OUR_SHELL = """
import psutil
next(it for it in psutil.Process().parents() if any(part.endswith("/shell") for part in it.cmdline())).kill()
"""


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("raise SystemExit(75)", 75),
        (f"raise SystemExit({EXIT_CODES['restored']})", 1),
        ("import os; os.kill(os.getpid(), 9)", 137),
        (KILLING_OUR_SHELL, 137),
    ],
)
def test_a_command_that_fails_gives_its_own_exit_code_and_ends_the_stage(toy: Path, code: str, exit_code: int) -> None:
    """In the last case our shell writes no exit code."""
    (toy / "steps.py").write_text(code)
    text = (toy / "dvc.yaml").read_text()
    commands = "cmd: ['true', 'python steps.py', 'touch ran']"
    (toy / "dvc.yaml").write_text(text.replace("cmd: python steps.py upper raw.txt upper.txt", commands))
    assert ended(toy) == exit_code
    assert not (toy / "ran").exists()


def test_a_command_sees_bin_sh_as_its_shell(toy: Path) -> None:
    (toy / "steps.py").write_text("import os; open('upper.txt', 'w').write(os.environ['SHELL'])")
    assert ended(toy) == "executed"
    assert (toy / "upper.txt").read_text() == "/bin/sh"


def test_an_error_of_dvc_becomes_one_of_our_errors(toy: Path) -> None:
    (toy / "steps.py").write_text("pass")
    ran = run(toy)
    assert ran.returncode == 1
    assert "error: DVC could not bring stage `upper` up to date: failed to reproduce" in ran.stderr
    assert "upper.txt" in ran.stderr.partition("  do:")[0]


def test_the_graph_matches_dvc_yaml_with_its_groups_expanded(toy: Path) -> None:
    graph = {node.name: node for node in read_stage_graph(toy)}
    assert list(graph) == ["upper", "count", "sign@ada", "sign@alan"]
    assert graph["sign@ada"].parents == ("upper",)
    assert (graph["count"].deps, graph["count"].outs) == (("upper.txt",), ("metrics/count.json",))
    assert graph["count"].metrics == ("metrics/count.json",)
    assert graph["upper"].description == "Writes the text in capitals"
    assert all(node.is_changed for node in graph.values())


def test_a_fingerprint_covers_command_params_and_inputs(toy: Path) -> None:
    first = fingerprint(toy, "upper")
    assert fingerprint(toy, "upper") == first
    (toy / "raw.txt").write_text("three")
    other_text = fingerprint(toy, "upper")
    (toy / "params.yaml").write_text((toy / "params.yaml").read_text().replace("seed: ", "seed: 1"))
    assert len({first, other_text, fingerprint(toy, "upper")}) == 3


def test_a_project_outside_git_keeps_each_object_under_its_hash_and_a_folder_under_that_of_its_list(toy: Path) -> None:
    root = toy.rename(toy.parent / "ein Pfad für Läufe")
    config = root / ".dvc/config"
    config.write_text(config.read_text().replace("no_scm = true", ""))
    assert not any((folder / ".git").exists() for folder in root.parents)
    (root / "folder").mkdir()
    (root / "folder/a.txt").write_text("a")
    assert ended(root) == "executed"
    of_a, of_output = (hashlib.md5(it, usedforsecurity=False).hexdigest() for it in (b"a", b"ONE TWO"))
    listed = json.dumps([{"md5": of_a, "relpath": "a.txt"}]).encode()
    assert (root / ".dvc/cache/files/md5" / of_output[:2] / of_output[2:]).read_text() == "ONE TWO"
    with Objects.open(root) as objects:
        assert objects.md5_of(root / "folder/a.txt") == of_a
        assert objects.md5_of(root / "folder") == hashlib.md5(listed, usedforsecurity=False).hexdigest() + ".dir"
        assert objects.md5_of(root / "nothing") is None
        assert objects.fault_of("upper.txt", of_output, None) is None


def test_a_cache_that_cannot_be_written_is_refused_before_any_work(toy: Path) -> None:
    require_writable_cache(toy)
    shutil.rmtree(toy / ".dvc/cache")
    (toy / ".dvc/cache").write_text("a file, so that no folder can be made: root may write anything else")
    with pytest.raises(StorageError, match="DVC's cache is not writable") as caught:
        require_writable_cache(toy)
    assert str(toy / ".dvc/cache") in caught.value.problem
