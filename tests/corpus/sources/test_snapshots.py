"""A snapshot holds the source as it was read; texts that it had before come first, in the order they had."""

import json
import logging
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from clozeline.corpus.sources import store
from clozeline.corpus.sources.snapshots import ordered
from clozeline.params.text import SourceParams
from clozeline.records.snapshot import Earlier, Snapshot, SnapshotFile
from clozeline.system.errors import DataError, TransientError
from tests.corpus.conftest import params_of
from tests.make.texts import take_snapshot

__all__ = ["params_of"]


@pytest.fixture
def params(params_of) -> SourceParams:
    return params_of().source


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    (folder / "more" / "b.txt").write_text("second")
    (folder / "a.txt").write_text("first")
    (folder / ".hidden").write_text("hidden")
    return folder


def everything(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_is_copied_by_content_with_its_names_in_the_manifest(
    tmp_path: Path, texts: Path, params: SourceParams
) -> None:
    (texts / "copy.txt").write_text("first")
    snapshot = take_snapshot(params, texts, tmp_path / "raw")
    assert [file.name for file in snapshot.files] == ["a.txt", "copy.txt", "more/b.txt"]
    contents = [(tmp_path / "raw" / file.object_name).read_text() for file in snapshot.files]
    assert contents == ["first", "first", "second"]
    assert len(everything(tmp_path / "raw")) == 3, "a manifest, and one file for each content"
    assert Snapshot.of_folder(tmp_path / "raw") == snapshot


def test_the_same_source_gives_the_same_bytes_at_any_time_and_place(
    tmp_path: Path, texts: Path, params: SourceParams
) -> None:
    take_snapshot(params, texts, tmp_path / "raw")
    moved = texts.rename(tmp_path / "elsewhere")
    os.utime(moved / "a.txt", (1, 1))
    take_snapshot(params, moved, tmp_path / "again", before=tmp_path / "raw")
    take_snapshot(params, moved, tmp_path / "anew")
    assert everything(tmp_path / "again") == everything(tmp_path / "anew") == everything(tmp_path / "raw")


def test_a_grown_folder_keeps_the_order_and_links_unchanged_files(
    tmp_path: Path, texts: Path, params: SourceParams
) -> None:
    first = take_snapshot(params, texts, tmp_path / "raw")
    (texts / "0.txt").write_text("third")
    second = take_snapshot(params, texts, tmp_path / "grown", before=tmp_path / "raw")
    assert second.files[:2] == first.files
    assert [(file.name, file.snapshot) for file in second.files[2:]] == [("0.txt", 2)]
    for file in first.files:
        assert (tmp_path / "grown" / file.object_name).samefile(tmp_path / "raw" / file.object_name)


def lines(*texts: str) -> str:
    return "".join(f"{json.dumps({'text': text})}\n" for text in texts)


@pytest.fixture
def feeds(tmp_path: Path) -> Path:
    """Two files of JSON Lines, to which a feed adds lines."""
    folder = tmp_path / "feeds"
    folder.mkdir()
    (folder / "a.jsonl").write_text(lines("one", "two"))
    (folder / "b.jsonl").write_text(lines("three"))
    return folder


def parts(raw: Path, snapshot: Snapshot) -> list[tuple[int, str, str]]:
    return [(file.snapshot, file.name, (raw / file.object_name).read_text()) for file in snapshot.files]


def test_the_new_lines_of_a_grown_file_come_after_all_earlier_files(
    tmp_path: Path, feeds: Path, params: SourceParams
) -> None:
    take_snapshot(params, feeds, tmp_path / "1")
    with (feeds / "a.jsonl").open("a") as file:
        file.write(lines("four"))
    second = take_snapshot(params, feeds, tmp_path / "2", before=tmp_path / "1")
    with (feeds / "a.jsonl").open("a") as file:
        file.write(lines("four"))
    with (feeds / "b.jsonl").open("a") as file:
        file.write(lines("five"))
    third = take_snapshot(params, feeds, tmp_path / "3", before=tmp_path / "2")
    first = [(1, "a.jsonl", lines("one", "two")), (1, "b.jsonl", lines("three"))]
    assert parts(tmp_path / "2", second) == [*first, (2, "a.jsonl", lines("four"))]
    assert parts(tmp_path / "3", third) == [
        *parts(tmp_path / "2", second),
        (3, "a.jsonl", lines("four")),
        (3, "b.jsonl", lines("five")),
    ]
    again = take_snapshot(params, feeds, tmp_path / "4", before=tmp_path / "3")
    assert everything(tmp_path / "4") == everything(tmp_path / "3")
    assert again == third


def test_a_renamed_file_in_parts_keeps_its_places(tmp_path: Path, feeds: Path, params: SourceParams) -> None:
    take_snapshot(params, feeds, tmp_path / "1")
    with (feeds / "a.jsonl").open("a") as file:
        file.write(lines("four"))
    take_snapshot(params, feeds, tmp_path / "2", before=tmp_path / "1")
    (feeds / "a.jsonl").rename(feeds / "z.jsonl")
    third = take_snapshot(params, feeds, tmp_path / "3", before=tmp_path / "2")
    assert [(file.snapshot, file.name) for file in third.files] == [(1, "b.jsonl"), (1, "z.jsonl"), (2, "z.jsonl")]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("a.jsonl", lines("one", "two"), lines("One", "two", "four")),
        ("a.jsonl", lines("one", "two"), lines("one")),
        ("a.jsonl", lines("one").rstrip("\n"), lines("one", "two")),
        ("a.jsonl", "", lines("one")),
        ("a.csv", "text\none\n", "text\none\ntwo\n"),
        ("a.txt", "one\n", "one\ntwo\n"),
    ],
    ids=["edited", "cut", "no end of the line", "empty before", "a header", "a text over several lines"],
)
def test_a_file_that_cannot_be_cut_counts_as_new_when_it_changes(
    tmp_path: Path, feeds: Path, params: SourceParams, name: str, before: str, after: str
) -> None:
    (feeds / "a.jsonl").unlink()
    (feeds / name).write_text(before)
    take_snapshot(params, feeds, tmp_path / "1")
    (feeds / name).write_text(after)
    second = take_snapshot(params, feeds, tmp_path / "2", before=tmp_path / "1")
    assert parts(tmp_path / "2", second) == [(1, "b.jsonl", lines("three")), (2, name, after)]


def test_the_users_own_files_are_never_linked(tmp_path: Path, texts: Path, params: SourceParams) -> None:
    """A link would make DVC's cache change with the file."""
    (file, _) = take_snapshot(params, texts, tmp_path / "raw").files
    assert not (tmp_path / "raw" / file.object_name).samefile(texts / "a.txt")


def test_another_source_starts_a_new_order(
    tmp_path: Path, texts: Path, params_of, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    take_snapshot(params_of(path="old").source, texts, tmp_path / "raw")
    snapshot = take_snapshot(params_of(path="new").source, texts, tmp_path / "new", before=tmp_path / "raw")
    assert {file.snapshot for file in snapshot.files} == {1}
    assert "the last snapshot is of old" in caplog.text


def test_an_incomplete_snapshot_is_not_used_as_the_earlier_one(
    tmp_path: Path, texts: Path, params: SourceParams
) -> None:
    take_snapshot(params, texts, tmp_path / "raw")
    files = {name: tmp_path / "raw" / name for name in everything(tmp_path / "raw")}
    assert Earlier.among(files).number == 1
    files.popitem()
    assert Earlier.among(files).number == 0
    (tmp_path / "raw" / "manifest.json").write_text(json.dumps({"of": "another version"}))
    assert Earlier.among(files).number == 0


@pytest.mark.parametrize(("name", "message"), [("nowhere", "no such file or folder"), ("empty", "no file matches")])
def test_a_source_without_files_is_named(tmp_path: Path, params: SourceParams, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=message) as caught:
        take_snapshot(params, tmp_path / name, tmp_path / "raw")
    assert "`source.path`" in caught.value.do


def test_a_file_that_grows_during_reading_is_reported(
    tmp_path: Path, texts: Path, params: SourceParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = store.shutil.copyfileobj

    def growing(source: BinaryIO, target: BinaryIO, length: int) -> None:
        copied(source, target, length)
        with Path(source.name).open("a") as file:
            file.write("more")

    monkeypatch.setattr(store.shutil, "copyfileobj", growing)
    with pytest.raises(TransientError, match=r"a\.txt changed while it was read"):
        take_snapshot(params, texts, tmp_path / "raw")


def file(name: str, content: str, snapshot: int = 9) -> SnapshotFile:
    return SnapshotFile(name=name, sha256=content, size_bytes=1, snapshot=snapshot)


def order(found: list[SnapshotFile], earlier: tuple[SnapshotFile, ...] = (), number: int = 1) -> list[tuple[int, str]]:
    return [(one.snapshot, one.name) for one in ordered(found, earlier, number)]


def test_the_first_snapshot_is_ordered_by_name() -> None:
    assert order([file("b", "B"), file("a", "A")]) == [(1, "a"), (1, "b")]


def test_a_new_file_comes_after_all_earlier_ones() -> None:
    earlier = ordered([file("b", "B"), file("c", "C")], (), 1)
    assert order([file("a", "A"), file("b", "B"), file("c", "C")], earlier, 2) == [(1, "b"), (1, "c"), (2, "a")]


def test_a_changed_file_counts_as_new_and_a_removed_one_is_dropped() -> None:
    earlier = ordered([file("a", "A"), file("b", "B")], (), 1)
    assert order([file("a", "changed")], earlier, 2) == [(2, "a")]


def test_a_renamed_file_keeps_its_place() -> None:
    earlier = ordered([file("a", "A"), file("b", "B")], (), 1)
    assert order([file("a", "A"), file("z", "B")], earlier, 2) == [(1, "a"), (1, "z")]


def test_the_copy_with_the_old_name_keeps_its_place() -> None:
    earlier = ordered([file("b", "same")], (), 1)
    assert order([file("a", "same"), file("b", "same")], earlier, 2) == [(1, "b"), (2, "a")]
