"""Claim: the next write in a folder removes debris of killed writers, and leaves the files of living writers.
Arrays in files take no memory of the process; a fingerprint covers facts, named files and their content alone.
"""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import clozeline
from clozeline.system import files
from clozeline.system.arrays import DiskArrays, chunks, gathered, mapped, system_allocator
from clozeline.system.errors import StorageError
from clozeline.system.files import (
    code_of,
    fingerprint,
    held_beside,
    remove_folder,
    replacing_file,
    replacing_folder,
    write_csv,
    write_records,
)


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


Replacing = Callable[[Path], AbstractContextManager[Path]]
either = pytest.mark.parametrize("replacing", [replacing_file, replacing_folder])


def written(replacing: Replacing, beside: Path) -> Path:
    """Return where a test writes: the file itself, or a file of the folder."""
    return beside if replacing is replacing_file else beside / "inside"


@either
def test_content_is_replaced_whole_when_the_block_ends_and_not_if_it_fails(tmp_path, replacing: Replacing) -> None:
    path = tmp_path / "deep" / "path"
    for text in ("one", "two"):
        with replacing(path) as beside:
            written(replacing, beside).write_text(text)
            assert text == "two" or not path.exists()
    left = everything_in(tmp_path)
    assert list(left.values()) == [b"two"]
    failures = {
        IsADirectoryError(): IsADirectoryError,
        OSError(errno.ENOSPC, "No space left on device"): StorageError,
        OSError(errno.EROFS, "Read-only file system"): StorageError,
    }

    def fail_half_way(failure: Exception) -> None:
        with replacing(path) as beside:
            written(replacing, beside).write_text("half")
            raise failure

    for failure, told in failures.items():
        with pytest.raises(told) as caught:
            fail_half_way(failure)
        assert told is not StorageError or str(path) in str(caught.value), "a full or read-only disk is named"
    assert everything_in(tmp_path) == left
    assert names_in(path.parent) == ["path"]


def test_a_folder_exists_at_every_moment_of_its_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No move takes its name away: the names are swapped at once, if the file system can do that."""
    path, other = tmp_path / "folder", tmp_path / "other"
    path.mkdir()
    other.mkdir()
    can_swap, moved = files._exchange(path, other), []
    monkeypatch.setattr(Path, "replace", lambda source, target: moved.append(source) or source.rename(target))
    with replacing_folder(path) as beside:
        (beside / "one").write_text("new")
    assert everything_in(path) == {"one": b"new"}
    assert (path not in moved) == can_swap


def test_a_failing_move_restores_the_old_folder_without_an_atomic_swap(tmp_path, monkeypatch) -> None:
    path, rename, moved = tmp_path / "folder", Path.replace, []
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    for text in ("first", "second"):
        with replacing_folder(path) as beside:
            (beside / "one").write_text(text)
    assert everything_in(tmp_path) == {"folder/one": b"second"}

    def second_fails(source: Path, target: Path) -> Path:
        moved.append(source)
        if len(moved) == 2:
            raise IsADirectoryError
        return rename(source, target)

    monkeypatch.setattr(Path, "replace", second_fails)
    with pytest.raises(IsADirectoryError), replacing_folder(path):
        pass
    assert everything_in(tmp_path) == {"folder/one": b"second"}
    assert names_in(tmp_path) == ["folder"]


def test_a_folder_is_removed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the removal is interrupted, no half-removed folder remains under its name."""
    path = tmp_path / "folder"
    (path / "deep").mkdir(parents=True)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(shutil, "rmtree", lambda folder: None)
        remove_folder(path)
    assert not path.exists()
    remove_folder(path)
    assert list(tmp_path.iterdir()) == []


@either
def test_content_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch, replacing: Replacing) -> None:
    """A power cut then leaves no empty file under the name, and the name itself is on the disk too."""
    flushed: list[tuple[str, bool]] = []
    path, flush = tmp_path / "new", os.fsync

    def noted(descriptor: int) -> None:
        flushed.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, path.exists()))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    with replacing(path) as beside:
        written(replacing, beside).write_text("content")
    assert flushed == [("new" if replacing is replacing_file else "inside", False), (tmp_path.name, True)]


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


def test_the_next_write_in_a_folder_removes_what_killed_writers_left_and_keeps_files_of_living_ones(tmp_path) -> None:
    for kind, other in (("file", "folder"), ("folder", "file")):
        folder = tmp_path / kind
        folder.mkdir()
        with writing(kind, folder / "out") as living, writing(other, folder / "killed") as killed:
            killed.kill()
            killed.wait()
            assert len(names_in(folder)) == 2
            with replacing_folder(folder / "another"):
                assert len(names_in(folder)) == 2, "our own, and that of the living writer"
            with held_beside(folder / "out"):  # another writer of the same name
                pass
            living.communicate("\n", timeout=120)
        assert living.returncode == 0
        assert names_in(folder) == ["another", "out"]
        assert list(everything_in(folder).values()) == [b"whole"]


@pytest.mark.parametrize(
    ("name", "is_debris"),
    [
        (".out.OURS.0123abcd.partial", True),  # processes in other containers can have our id
        (".out.1.0123abcd.partial", False),
    ],
)
def test_partial_files_of_unknown_origin_are_kept(name: str, is_debris: bool, tmp_path: Path) -> None:
    """They may come from an older version or a person, and nothing shows whether they are still being written."""
    name = name.replace("OURS", str(os.getpid()))
    (tmp_path / name).mkdir()
    (tmp_path / name / (".held" if is_debris else "precious")).touch()
    with held_beside(tmp_path / "out"):
        assert (tmp_path / name).exists() != is_debris
    assert names_in(tmp_path) == ([] if is_debris else [name])


@dataclass(frozen=True)
class Point:
    step: int
    loss: float


def test_a_table_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """Rows survive a round trip; records have a column for each field."""
    path, rows = tmp_path / "plots" / "table.csv", [('a "b", c', 0.5), ("größe\nin two lines", 1)]
    write_csv(path, ("label", "f1"), rows)
    assert path.read_bytes() == 'label,f1\n"a ""b"", c",0.5\n"größe\nin two lines",1\n'.encode()
    write_records(path, Point, [Point(1, 0.5), Point(2, float("nan"))])
    assert path.read_bytes() == b"step,loss\n1,0.5\n2,nan\n"

    def failing() -> Iterator[tuple[int]]:
        yield (2,)
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        write_csv(path, ("x",), failing())
    assert everything_in(tmp_path) == {"plots/table.csv": b"step,loss\n1,0.5\n2,nan\n"}


def own_bytes() -> int:
    """Return the anonymous memory of this process in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_a_large_array_takes_no_memory_of_the_process(tmp_path: Path) -> None:
    before = own_bytes()
    numbers = DiskArrays(tmp_path).empty(8_000_000, np.int64)
    for chunk in chunks(len(numbers)):
        numbers[chunk] = np.arange(chunk.start, chunk.stop)
    assert own_bytes() - before < 16_000_000 < numbers.nbytes
    assert not list(tmp_path.iterdir()), "its file has no name"
    assert numbers[[0, 70_000, -1]].tolist() == [0, 70_000, 7_999_999]
    values, places = np.arange(200_000) * 3, np.random.default_rng(0).permutation(200_000)
    np.testing.assert_array_equal(gathered(values, places, DiskArrays().empty), values[places])


@pytest.mark.parametrize("parts", [[], [[]], [[1, 2], [], [3]]])
def test_numbers_appended_in_parts_are_joined_and_read_from_a_file(tmp_path: Path, parts: list[list[int]]) -> None:
    joined = DiskArrays().joined((np.array(part, np.int64) for part in parts), np.uint32)
    expected = [number for part in parts for number in part]
    assert (joined.dtype, joined.tolist()) == (np.uint32, expected)
    joined.tofile(tmp_path / "numbers.bin")
    assert mapped(tmp_path / "numbers.bin", np.uint32).tolist() == expected


def test_the_system_allocator_is_used_only_within_the_block() -> None:
    before = pa.default_memory_pool().backend_name
    with system_allocator():
        assert pa.default_memory_pool().backend_name == "system"
    assert pa.default_memory_pool().backend_name == before


def test_changed_params_or_code_give_another_fingerprint(tmp_path: Path) -> None:
    code, names = tmp_path / "code.py", []
    for content, rate in (("one = 1\n", 0.1), ("one = 1\n", 0.1), ("one = 1\n", 0.2), ("one = 2\n", 0.1)):
        code.write_text(content)
        names.append(fingerprint({"learning_rate": rate}, [code]))
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_the_code_hash_covers_only_the_named_folders_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("__init__.py", "errors.py", "encoder/rows.py", "language/shards.py", "records/reading/tokens.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(clozeline, "__file__", str(tmp_path / "__init__.py"))
    found = [file.relative_to(tmp_path).as_posix() for file in code_of(["language/shards.py", "encoder"])]
    assert found == ["language/shards.py", "encoder/rows.py"]
