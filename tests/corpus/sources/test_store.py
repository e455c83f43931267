"""Records that were there stay in their shards; new ones go into new shards, whatever order the source has."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from clozeline.corpus.sources import store
from clozeline.corpus.sources.store import SnapshotStore, keep_records, line_of
from clozeline.records.snapshot import Earlier, Snapshot, SnapshotFile


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
        paths = {file.object_name: self.folder / file.object_name for file in files}
        self.earlier = Earlier(manifest, paths)
        return files

    def texts(self) -> list[list[str]]:
        """Return the texts of each shard, in order."""
        shards = []
        for file in self.earlier.files:
            stored = pa.OSFile(str(self.earlier.path_of(file)))
            with pa.CompressedInputStream(stored, "zstd") as stream:
                shards.append([json.loads(line)["text"] for line in stream.read().splitlines()])
        return shards


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path)


def test_records_keep_source_order(snapshots: Snapshots) -> None:
    (shard,) = snapshots.take("b", "a", "b")
    assert snapshots.texts() == [["b", "a", "b"]]
    assert (shard.snapshot, shard.records, shard.name) == (1, 3, "000001-000001.jsonl.zst")


def test_new_records_go_into_a_new_shard_and_the_old_one_stays_unchanged(snapshots: Snapshots) -> None:
    first = snapshots.take("a", "b")
    second = snapshots.take("new", "b", "a", "b")
    assert second[0] == first[0]
    assert snapshots.texts() == [["a", "b"], ["new", "b"]]
    assert [shard.snapshot for shard in second] == [1, 2]


def test_the_same_records_in_another_order_are_the_same_snapshot(snapshots: Snapshots) -> None:
    assert snapshots.take("a", "b", "c") == snapshots.take("c", "a", "b")


def test_removing_a_record_does_not_move_the_others(snapshots: Snapshots) -> None:
    snapshots.take("a", "b", "b", "c")
    snapshots.take("a", "b", "c", "d")
    assert snapshots.texts() == [["a", "b", "c"], ["d"]]
    shards = snapshots.take("d")
    assert snapshots.texts() == [["d"]]
    assert [shard.snapshot for shard in shards] == [2]


def test_unchanged_content_is_linked_and_not_written_again(snapshots: Snapshots) -> None:
    (first,) = snapshots.take("a")
    written = snapshots.folder / first.object_name
    snapshots.take("a")
    assert (snapshots.folder / first.object_name).samefile(written)


def test_a_shard_ends_at_its_maximum_size(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_SHARD_BYTES", 2 * len(line_of({"text": "a"})))
    snapshots.take("a", "b", "c")
    assert snapshots.texts() == [["a", "b"], ["c"]]


def test_unusual_text_and_values_without_a_json_type_are_kept(snapshots: Snapshots) -> None:
    snapshots.take("é\n\u2028\x00")
    assert snapshots.texts() == [["é\n\u2028\x00"]]
    assert json.loads(line_of({"day": Path("x"), "half": "\ud83d"})) == {"day": "x", "half": "\ud83d"}
