"""A large file of an output is kept in a folder under its sha256, and a pointer stands in its place."""

import errno
import os
import re
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from clozeline.errors import ArtifactError, ParamsError, StorageError
from clozeline.storage import large_files
from clozeline.storage.large_files import VARIABLE, LargeFiles, Pointer, check_large_files, keep_large, located

LARGE = b"x" * 2_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "large"
    found.mkdir()
    monkeypatch.setenv(VARIABLE, str(found))
    return found


@pytest.fixture
def out(tmp_path: Path) -> Path:
    written = tmp_path / "out"
    written.mkdir()
    (written / "large.bin").write_bytes(LARGE)
    (written / "small.bin").write_bytes(b"y" * 500)
    return written


def test_a_file_above_the_limit_is_kept_apart_and_found_by_its_pointer(folder: Path, out: Path) -> None:
    keep_large(out.iterdir(), 0.001, "KNOB")
    pointer = Pointer.in_file(out / "large.bin")
    assert pointer == Pointer(sha256=sha256(LARGE).hexdigest(), size_bytes=2_000)
    assert (out / "large.bin").stat().st_size < 200
    assert located(out / "large.bin").read_bytes() == LARGE
    assert located(out / "large.bin").is_relative_to(folder)
    assert located(out / "small.bin") == out / "small.bin"


def test_without_a_limit_no_file_moves_and_no_folder_is_needed(out: Path) -> None:
    check_large_files(None, "KNOB")
    keep_large(out.iterdir(), None, "KNOB")
    assert (out / "large.bin").read_bytes() == LARGE


def test_equal_contents_have_one_place_and_equal_pointers(folder: Path, out: Path) -> None:
    shutil.copy(out / "large.bin", out / "again.bin")
    keep_large([out / "large.bin", out / "again.bin"], 0.001, "KNOB")
    assert (out / "large.bin").read_bytes() == (out / "again.bin").read_bytes()
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 1


def test_a_known_hash_is_not_computed_again(folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_files, "sha256_of", lambda path: pytest.fail(f"{path} was read"))
    keep_large([out / "large.bin"], 0.001, "KNOB", {out / "large.bin": sha256(LARGE).hexdigest()})
    assert located(out / "large.bin").read_bytes() == LARGE


def test_a_pointer_whose_content_is_not_here_is_refused(
    folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_large([out / "large.bin"], 0.001, "KNOB")
    content = located(out / "large.bin")
    content.chmod(0o644)
    content.write_bytes(LARGE[:-1])
    with pytest.raises(ArtifactError, match=re.escape(f"{content} with 1,999 bytes, not 2,000")):
        located(out / "large.bin")
    content.unlink()
    with pytest.raises(ArtifactError, match=f"no {content}"):
        located(out / "large.bin")
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ArtifactError, match=f"no {VARIABLE}"):
        located(out / "large.bin")


@pytest.mark.parametrize("given", ["", "relative", "/no/such/folder"])
def test_a_folder_that_is_not_there_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, given)
    with pytest.raises(ParamsError, match=VARIABLE):
        check_large_files(5.0, "KNOB")


def test_a_full_disk_leaves_the_file_and_no_part(folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"a part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "move", full)
    with pytest.raises(StorageError, match="no space left"):
        keep_large([out / "large.bin"], 0.001, "KNOB")
    assert (out / "large.bin").read_bytes() == LARGE
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_a_damaged_content_is_noticed_by_its_hash(folder: Path, out: Path) -> None:
    keep_large([out / "large.bin"], 0.001, "KNOB")
    pointer, content = Pointer.in_file(out / "large.bin"), located(out / "large.bin")
    assert pointer
    assert LargeFiles(folder).fault_of(pointer) is None
    content.chmod(0o644)
    content.write_bytes(LARGE.replace(b"x", b"z"))
    assert "is damaged" in str(LargeFiles(folder).fault_of(pointer))


@pytest.mark.parametrize("content", [b"", b"{}", b'{"large_file":1}', b'{"large_file":2,"sha256":"a","size_bytes":1}'])
def test_other_small_files_are_no_pointers(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    assert located(tmp_path / "file") == tmp_path / "file"
