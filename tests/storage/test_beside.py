"""Claim: the next write in a folder removes debris of killed writers, and leaves the files of living writers."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clozeline.system import files
from clozeline.system.files import held_beside, replacing_file, replacing_folder

WRITER = """
import sys
from pathlib import Path
from clozeline.system.files import replacing_file, replacing_folder
path = Path(sys.argv[2])
with {"file": replacing_file, "folder": replacing_folder}[sys.argv[1]](path) as beside:
    (beside if sys.argv[1] == "file" else beside / "one").write_text("whole")
    print("writing", flush=True)
    sys.stdin.readline()
"""
KINDS = ["file", "folder"]


@contextmanager
def writing(kind: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that has written half of its output, and continues after a line on its stdin."""
    command = [sys.executable, "-c", WRITER, kind, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "writing\n"
            yield process
        finally:
            process.kill()


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_write_in_a_folder_removes_debris_of_a_killed_writer(kind: str, tmp_path: Path) -> None:
    with writing(kind, tmp_path / "out") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(names_in(tmp_path)) == 1
    with replacing_file(tmp_path / "another") as file:
        file.write_text("new")
    assert names_in(tmp_path) == ["another"]


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_a_living_writer_are_kept(kind: str, tmp_path: Path) -> None:
    with writing(kind, tmp_path / "out") as process:
        with replacing_folder(tmp_path / "another"):
            assert len(names_in(tmp_path)) == 2
        with held_beside(tmp_path / "out"):  # another writer of the same name
            pass
        process.communicate("\n", timeout=120)
    assert process.returncode == 0
    assert names_in(tmp_path) == ["another", "out"]
    written = tmp_path / "out" if kind == "file" else tmp_path / "out" / "one"
    assert written.read_text() == "whole"


def test_debris_with_our_own_process_id_is_removed(tmp_path: Path) -> None:
    """Processes in other containers can have the same id."""
    left = tmp_path / f".out.{os.getpid()}.0123abcd.partial"
    left.mkdir()
    (left / ".held").touch()
    with held_beside(tmp_path / "out") as ours:
        assert names_in(tmp_path) == [ours.name]
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("name", [".out.1.0123abcd.partial", ".partial", "out.partial"])
def test_partial_files_of_unknown_origin_are_kept(name: str, tmp_path: Path) -> None:
    """It may come from an older version or a person, and nothing shows whether it is still being written."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "precious").touch()
    with held_beside(tmp_path / "out"):
        pass
    assert names_in(tmp_path / name) == ["precious"]


def test_a_folder_removed_before_it_is_locked_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process removes the folder before we lock it."""
    taken: list[Path] = []
    make = Path.mkdir

    def make_and_lose(folder: Path, **options: bool) -> None:
        make(folder, **options)
        if not taken:
            taken.append(folder)
            files._remove_abandoned(folder)

    monkeypatch.setattr(Path, "mkdir", make_and_lose)
    with held_beside(tmp_path / "out") as ours:
        assert names_in(tmp_path) == [ours.name] != [taken[0].name]


def test_a_folder_that_cannot_be_removed_now_is_removed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(folder)

    with monkeypatch.context() as patched, held_beside(tmp_path / "out") as ours:
        (ours / "deep").mkdir()
        patched.setattr(shutil, "rmtree", refuse)
    assert names_in(tmp_path) == [ours.name]
    with held_beside(tmp_path / "out"):
        pass
    assert names_in(tmp_path) == []
