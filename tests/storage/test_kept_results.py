"""Claim: a kept result comes back as it was written, or not at all."""

from pathlib import Path

import pytest

from clozeline.storage.kept_results import KeptResults


@pytest.fixture
def kept(tmp_path: Path) -> KeptResults:
    kept = KeptResults(tmp_path / "kept")
    kept.write("aa01", b"one")
    kept.write("bb02", b"two")
    return kept


def path_of(tmp_path: Path, key: str) -> Path:
    return tmp_path / "kept" / key[:2] / key


def test_results_are_found_by_their_keys(kept: KeptResults) -> None:
    assert kept.read("aa01") == b"one"
    assert kept.read("bb02") == b"two"
    assert kept.read("aa02") is None


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content[:-1] + b"x", lambda _: b""])
def test_a_damaged_result_counts_as_missing(kept: KeptResults, tmp_path: Path, damage) -> None:
    path = path_of(tmp_path, "aa01")
    path.write_bytes(damage(path.read_bytes()))
    assert kept.read("aa01") is None
    kept.write("aa01", b"one")
    assert kept.read("aa01") == b"one"


def test_a_result_under_the_key_of_another_counts_as_missing(kept: KeptResults, tmp_path: Path) -> None:
    path_of(tmp_path, "aa01").rename(path_of(tmp_path, "bb02"))
    assert kept.read("bb02") is None


def test_cleaning_keeps_the_named_results_and_removes_debris_of_killed_writers(
    kept: KeptResults, tmp_path: Path
) -> None:
    path_of(tmp_path, "aa01.17.0a1b2c3d.partial").write_bytes(b"half")
    kept.keep_only({"bb02"})
    assert [path.name for path in (tmp_path / "kept").rglob("*") if path.is_file()] == ["bb02"]


def test_an_unwritable_cache_folder_keeps_nothing_and_stops_no_run(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file in its place")
    kept = KeptResults(tmp_path / "kept")
    kept.write("aa01", b"one")
    kept.keep_only(set())
    assert kept.read("aa01") is None


def test_a_full_disk_leaves_no_part(kept: KeptResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    kept.write("cc03", b"three")
    assert kept.read("cc03") is None
    assert list((tmp_path / "kept" / "cc").iterdir()) == []
