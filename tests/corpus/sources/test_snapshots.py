"""A snapshot holds the source as it was read; texts that it had before come first, in the order they had."""

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import pytest

from clozeline.corpus.sources import store
from clozeline.records.snapshot import Earlier, Snapshot
from clozeline.system.errors import TransientError
from tests.corpus.conftest import params_of
from tests.make.texts import take_snapshot

__all__ = ["params_of"]


def write(folder: Path, texts: Mapping[str, str]) -> Path:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write(tmp_path / "texts", {"more/b.txt": "second", "a.txt": "first", ".hidden": "hidden"})


@pytest.fixture
def take(params_of, tmp_path: Path) -> Callable[..., Snapshot]:
    """`take(source, name, before)`: a snapshot in the folder `name`, in the order of the one in the folder `before`."""

    def take(source: Path, name: str = "raw", before: str | None = None, place: str = "texts") -> Snapshot:
        earlier = None if before is None else tmp_path / before
        return take_snapshot(params_of(path=place).source, source, tmp_path / name, earlier)

    return take


def everything(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_is_copied_by_content_with_its_names_in_the_manifest(tmp_path: Path, texts: Path, take) -> None:
    """The user's own files are never linked: a link would make DVC's cache change with the file."""
    (texts / "copy.txt").write_text("first")
    snapshot, raw = take(texts), tmp_path / "raw"
    assert [file.name for file in snapshot.files] == ["a.txt", "copy.txt", "more/b.txt"]
    assert [(raw / file.object_name).read_text() for file in snapshot.files] == ["first", "first", "second"]
    assert len(everything(raw)) == 3, "a manifest, and one file for each content"
    assert Snapshot.of_folder(raw) == snapshot
    assert not (raw / snapshot.files[0].object_name).samefile(texts / "a.txt")


def test_the_same_source_gives_the_same_bytes_at_any_time_and_place(tmp_path: Path, texts: Path, take) -> None:
    take(texts)
    moved = texts.rename(tmp_path / "elsewhere")
    os.utime(moved / "a.txt", (1, 1))
    take(moved, "again", before="raw")
    take(moved, "anew")
    assert everything(tmp_path / "again") == everything(tmp_path / "anew") == everything(tmp_path / "raw")


def test_a_grown_folder_keeps_the_order_and_links_unchanged_files(tmp_path: Path, texts: Path, take) -> None:
    first = take(texts)
    (texts / "0.txt").write_text("third")
    second = take(texts, "grown", before="raw")
    assert second.files[:2] == first.files
    assert [(file.name, file.snapshot) for file in second.files[2:]] == [("0.txt", 2)]
    for file in first.files:
        assert (tmp_path / "grown" / file.object_name).samefile(tmp_path / "raw" / file.object_name)
    (texts / "a.txt").write_text("changed")
    (texts / "more" / "b.txt").rename(texts / "z.txt")
    (texts / "1.txt").write_text("third")  # the old name of this content stays
    third = take(texts, "changed", before="grown")
    assert [(file.snapshot, file.name) for file in third.files] == [
        (1, "z.txt"),
        (2, "0.txt"),
        (3, "1.txt"),
        (3, "a.txt"),
    ]


def lines(*texts: str) -> str:
    return "".join(f"{json.dumps({'text': text})}\n" for text in texts)


def append(file: Path, *texts: str) -> None:
    file.write_text(file.read_text() + lines(*texts))


@pytest.fixture
def feeds(tmp_path: Path) -> Path:
    """Two files of JSON Lines, to which a feed adds lines."""
    return write(tmp_path / "feeds", {"a.jsonl": lines("one", "two"), "b.jsonl": lines("three")})


def parts(raw: Path, snapshot: Snapshot) -> list[tuple[int, str, str]]:
    return [(file.snapshot, file.name, (raw / file.object_name).read_text()) for file in snapshot.files]


def test_the_new_lines_of_a_grown_file_come_after_all_earlier_files(tmp_path: Path, feeds: Path, take) -> None:
    take(feeds, "1")
    append(feeds / "a.jsonl", "four")
    second = take(feeds, "2", before="1")
    append(feeds / "a.jsonl", "four")
    append(feeds / "b.jsonl", "five")
    third = take(feeds, "3", before="2")
    first = [(1, "a.jsonl", lines("one", "two")), (1, "b.jsonl", lines("three"))]
    grown = [(2, "a.jsonl", lines("four")), (3, "a.jsonl", lines("four")), (3, "b.jsonl", lines("five"))]
    assert parts(tmp_path / "2", second) == [*first, *grown[:1]]
    assert parts(tmp_path / "3", third) == [*first, *grown]
    assert take(feeds, "4", before="3") == third
    assert everything(tmp_path / "4") == everything(tmp_path / "3")
    (feeds / "a.jsonl").rename(feeds / "z.jsonl")
    renamed = [(file.snapshot, file.name[0]) for file in take(feeds, "5", before="4").files]
    assert renamed == [(1, "b"), (1, "z"), (2, "z"), (3, "b"), (3, "z")], "a renamed file in parts keeps its places"


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("a.jsonl", lines("one", "two"), lines("One", "two", "four")),
        ("a.jsonl", lines("one", "two"), lines("one")),
        ("a.jsonl", lines("one").rstrip("\n"), lines("one", "two")),
        ("a.csv", "text\none\n", "text\none\ntwo\n"),
        ("a.txt", "one\n", "one\ntwo\n"),
    ],
    ids=["edited", "cut", "no end of the line", "a header", "a text over several lines"],
)
def test_a_file_that_cannot_be_cut_counts_as_new_when_it_changes(tmp_path, take, name, before: str, after: str) -> None:
    feeds = write(tmp_path / "feeds", {"b.jsonl": lines("three"), name: before})
    take(feeds, "1")
    (feeds / name).write_text(after)
    second = take(feeds, "2", before="1")
    assert parts(tmp_path / "2", second) == [(1, "b.jsonl", lines("three")), (2, name, after)]


def test_another_source_starts_a_new_order(texts: Path, take, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    take(texts, place="old")
    assert {file.snapshot for file in take(texts, "new", before="raw", place="new").files} == {1}
    assert "the last snapshot is of old" in caplog.text


def test_an_incomplete_snapshot_is_not_used_as_the_earlier_one(tmp_path: Path, texts: Path, take) -> None:
    take(texts)
    files = {name: tmp_path / "raw" / name for name in everything(tmp_path / "raw")}
    assert Earlier.among(files).number == 1
    files.popitem()
    assert Earlier.among(files).number == 0
    (tmp_path / "raw" / "manifest.json").write_text(json.dumps({"of": "another version"}))
    assert Earlier.among(files).number == 0


def test_a_file_that_grows_during_reading_is_reported(texts: Path, take, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = store.shutil.copyfileobj

    def growing(source: BinaryIO, target: BinaryIO, length: int) -> None:
        copied(source, target, length)
        with Path(source.name).open("a") as file:
            file.write("more")

    monkeypatch.setattr(store.shutil, "copyfileobj", growing)
    with pytest.raises(TransientError, match=r"a\.txt changed while it was read"):
        take(texts)
