"""A snapshot holds the source as it was read; texts that it had before come first, in the order they had.
Records that were there stay in their shards; new ones go into new shards, whatever order the source has. Forgotten
texts are cut out of the files of a source, in each format; the rest stays as it is.
"""

import gzip
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.corpus.sources import store
from clozeline.corpus.sources.store import SnapshotStore, keep_records, line_of, redact
from clozeline.records.snapshot import Earlier, Forgotten, Snapshot, SnapshotFile
from clozeline.system.errors import TransientError
from tests.make.texts import take_snapshot


def write(folder: Path, texts: Mapping[str, str]) -> Path:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    hidden = {".hidden": "hidden", ".git/x.txt": "hidden"}
    return write(tmp_path / "texts", {"more/b.txt": "second", "a.txt": "first", **hidden})


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


class Snapshots:
    """Takes one snapshot after another in folders of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.earlier = Earlier()
        self.folder = root

    def take(self, *texts: str) -> tuple[SnapshotFile, ...]:
        self.folder = self.root / str(len(list(self.root.iterdir())))
        self.folder.mkdir()
        files = keep_records((line_of({"text": text}) for text in texts), SnapshotStore(self.folder, self.earlier))
        manifest = Snapshot(kind="sql", place="x", revision=None, raw_bytes=0, files=files)
        self.earlier = Earlier(manifest, {file.object_name: self.folder / file.object_name for file in files})
        return files

    def texts(self) -> list[list[str]]:
        """Return the texts of each shard, in order."""
        shards = []
        for file in self.earlier.files:
            with pa.CompressedInputStream(pa.OSFile(str(self.earlier.path_of(file))), "zstd") as stream:
                shards.append([json.loads(line)["text"] for line in stream.read().splitlines()])
        return shards


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path)


def test_new_records_go_into_a_new_shard_and_the_old_one_stays_unchanged(snapshots: Snapshots) -> None:
    (first,) = snapshots.take("b", "a", "b", "é\n\u2028\x00")
    assert snapshots.texts() == [["b", "a", "b", "é\n\u2028\x00"]], "in the order of the source"
    assert (first.snapshot, first.records, first.name) == (1, 4, "000001-000001.jsonl.zst")
    written = snapshots.folder / first.object_name
    assert snapshots.take("a", "é\n\u2028\x00", "b", "b") == (first,), "another order is the same snapshot"
    assert (snapshots.folder / first.object_name).samefile(written), "what is unchanged is linked"
    assert [shard.snapshot for shard in snapshots.take("new", "b", "a", "b", "b", "é\n\u2028\x00")] == [1, 2]
    assert snapshots.texts() == [["b", "a", "b", "é\n\u2028\x00"], ["new", "b"]]


def test_removing_a_record_does_not_move_the_others(snapshots: Snapshots) -> None:
    snapshots.take("a", "b", "b", "c")
    snapshots.take("a", "b", "c", "d")
    assert snapshots.texts() == [["a", "b", "c"], ["d"]]
    shards = snapshots.take("d")
    assert snapshots.texts() == [["d"]]
    assert [shard.snapshot for shard in shards] == [2]


def test_a_shard_ends_at_its_maximum_size(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_SHARD_BYTES", 2 * len(line_of({"text": "a"})))
    snapshots.take("a", "b", "c")
    assert snapshots.texts() == [["a", "b"], ["c"]]
    assert json.loads(line_of({"day": Path("x"), "half": "\ud83d"})) == {"day": "x", "half": "\ud83d"}


TEXT = "Jane Doe lives at 5 Elm Street, in the town of Oz."
FORGOTTEN = Forgotten(key=b"key").with_text(TEXT)
OTHER = "Somebody else lives at 6 Elm Street, in the town of Oz."


def left(tmp_path: Path, name: str, content: bytes) -> bytes | None:
    """Return the file without the forgotten text; None if it does not hold it."""
    file, beside = tmp_path / name, tmp_path / "beside"
    file.write_bytes(content)
    return beside.read_bytes() if redact(file, name, FORGOTTEN, beside) else None


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("a.txt", f"{OTHER}\n\n{TEXT}\n\nEnd\n", f"{OTHER}\n\n\n\nEnd\n"),
        ("a.txt", "Jane Doe lives\nat 5 Elm Street,\n\nin the town of Oz.\nEnd", "\nEnd"),
        ("a.csv", f'n,text\n1,"{TEXT}"\n2,"{OTHER}"\n3,"So: {TEXT} Yes"\n', f'n,text\n2,"{OTHER}"\n3,So:  Yes\n'),
        ("a.tsv", f"n\ttext\n1\t{TEXT}\n", "n\ttext\n"),
        ("a", f"{json.dumps({'text': TEXT})}\n{json.dumps({'text': OTHER})}\n", f"{json.dumps({'text': OTHER})}\n"),
        ("a.jsonl", '{"t": "Jane Doe\\nlives at 5 \\u0045lm Street in the town of Oz"}\n{"t":1}\n', '{"t":1}\n'),
        ("a.jsonl", f"{json.dumps({'x': {'y': ['So ' + TEXT]}})}\n", '{"x": {"y": ["So "]}}\n'),
        *((name, f"text\n{OTHER}\n", None) for name in ("a.txt", "a.csv", "a.jsonl")),
    ],
)
def test_the_text_is_cut_out_of_each_format(tmp_path: Path, name: str, before: str, after: str | None) -> None:
    """A file without it is not written."""
    assert left(tmp_path, name, before.encode()) == (None if after is None else after.encode())


def test_rows_of_parquet_are_left_out(tmp_path: Path) -> None:
    file, beside = tmp_path / "a.parquet", tmp_path / "b"
    pq.write_table(pa.table({"n": [1, 2, None], "text": [TEXT, OTHER, f"So {TEXT}"]}), file)
    assert redact(file, file.name, FORGOTTEN, beside)
    assert pq.read_table(beside).to_pylist() == [{"n": 2, "text": OTHER}, {"n": None, "text": "So "}]


def test_a_compressed_file_stays_compressed_and_one_that_is_not_text_is_left_to_preprocess(tmp_path: Path) -> None:
    content = left(tmp_path, "a.txt.gz", gzip.compress(f"{TEXT}\n\nEnd".encode()))
    assert content
    assert gzip.decompress(content) == b"\n\nEnd"
    assert left(tmp_path, "a.txt", b"\xff\xfe\x00") is left(tmp_path, "a.parquet", b"PAR1") is None


@pytest.mark.parametrize("block", [1, 70, 1000])
def test_a_text_across_two_blocks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(store, "_BLOCK_CHARACTERS", block)
    words = "\n".join(TEXT.split())
    content = left(tmp_path, "a.txt", f"Begin\n{words}\n{OTHER}\n{words}\nEnd\n".encode())
    assert content == f"Begin\n\n{OTHER}\n\nEnd\n".encode()
