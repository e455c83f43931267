import errno
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType

import pytest

from clozeline.system import files
from clozeline.system.errors import StorageError
from clozeline.system.files import remove_folder, replacing_file, replacing_folder


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def fail_half_way(path: Path) -> None:
    path.write_text("half")
    raise IsADirectoryError


def test_a_file_is_replaced_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    with replacing_file(path) as beside:
        beside.write_text("new")
        assert not path.exists()
    assert everything_in(tmp_path) == {"deep/file": b"new"}


def test_a_failing_block_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(IsADirectoryError), replacing_file(path) as beside:
        fail_half_way(beside)
    assert everything_in(tmp_path) == {"file": b"old"}


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for name in ("one", "two"):
        with replacing_folder(path) as beside:
            (beside / name).write_text(name)
    assert everything_in(tmp_path) == {"folder/two": b"two"}


def test_a_folder_exists_at_every_moment_of_its_replacement(tmp_path: Path) -> None:
    """The test looks for the folder before every line that runs, and at the end of every function."""
    path, other = tmp_path / "folder", tmp_path / "other"
    path.mkdir()
    other.mkdir()
    can_swap = files._exchange(path, other)  # some file systems cannot swap names
    missing: list[str] = []
    looked_in: set[str] = set()

    def look(frame: FrameType, event: str, argument: object) -> Callable[..., object] | None:
        if frame.f_code.co_filename != files.__file__:
            return None
        looked_in.add(frame.f_code.co_name)
        missing.extend(() if path.exists() else (f"{frame.f_code.co_name}, line {frame.f_lineno}",))
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        with replacing_folder(path) as beside:
            (beside / "one").write_text("new")
    finally:
        sys.settrace(before)
    assert everything_in(path) == {"one": b"new"}
    assert looked_in >= {"replacing_folder", "_swap", "_exchange"}
    assert not (missing and can_swap), missing


def test_a_failing_move_restores_the_old_folder_without_an_atomic_swap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename = tmp_path / "folder", Path.replace
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    for text in ("first", "second"):
        with replacing_folder(path) as beside:
            (beside / "one").write_text(text)
    assert everything_in(tmp_path) == {"folder/one": b"second"}
    moved: list[Path] = []

    def second_fails(source: Path, target: Path) -> Path:
        moved.append(source)
        if len(moved) == 2:
            raise IsADirectoryError
        return rename(source, target)

    monkeypatch.setattr(Path, "replace", second_fails)
    with pytest.raises(IsADirectoryError), replacing_folder(path):
        pass
    assert everything_in(tmp_path) == {"folder/one": b"second"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_a_folder_is_removed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the removal is interrupted, no half-removed folder remains under its name."""
    path = tmp_path / "folder"
    (path / "deep").mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", lambda folder: None)
    remove_folder(path)
    assert not path.exists()
    monkeypatch.undo()
    remove_folder(path)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_block_keeps_the_old_folder_and_leaves_no_temporary_folder(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with replacing_folder(path) as beside:
        (beside / "one").write_text("one")
    with pytest.raises(IsADirectoryError), replacing_folder(path) as beside:
        fail_half_way(beside / "two")
    assert everything_in(tmp_path) == {"folder/one": b"one"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("replacing", [replacing_file, replacing_folder])
def test_content_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replacing: Callable[[Path], AbstractContextManager[Path]]
) -> None:
    """A power cut then leaves no empty file under the name, and the name itself is on the disk too."""
    flushed: list[tuple[str, bool]] = []
    path, flush = tmp_path / "new", os.fsync

    def noted(descriptor: int) -> None:
        flushed.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, path.exists()))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    with replacing(path) as beside:
        (beside if replacing is replacing_file else beside / "inside").write_text("content")
    assert flushed == [("new" if replacing is replacing_file else "inside", False), (tmp_path.name, True)]


@pytest.mark.parametrize("replacing", [replacing_file, replacing_folder])
def test_a_full_disk_is_reported_by_name_and_the_old_content_stays(tmp_path: Path, replacing: object) -> None:
    path = tmp_path / "precious"
    path.write_text("old") if replacing is replacing_file else path.mkdir()
    with pytest.raises(StorageError, match="no space left while writing") as caught, replacing(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(path) in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize("replacing", [replacing_file, replacing_folder])
def test_a_read_only_disk_is_reported_by_name(tmp_path: Path, replacing: object) -> None:
    with pytest.raises(StorageError, match="cannot be written") as caught, replacing(tmp_path / "new"):
        raise OSError(errno.EROFS, "Read-only file system")
    assert str(tmp_path / "new") in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_other_disk_errors_keep_their_message(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), replacing_file(tmp_path / "file"):
        raise PermissionError(errno.EACCES, "denied")
