from clozeline.corpus.sources.snapshots import ordered
from clozeline.records.snapshot import SnapshotFile


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
