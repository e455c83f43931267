"""Records that were there stay in their shards; new ones go into new shards, whatever order the source has.
Forgotten texts are cut out of the files of a source, in each format; the rest stays as it is.
"""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.corpus.sources import store
from clozeline.corpus.sources.store import SnapshotStore, keep_records, line_of, redact
from clozeline.records.snapshot import Earlier, Forgotten, Snapshot, SnapshotFile


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
