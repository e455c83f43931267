"""start.lock names a version and its files, or none, and leads nowhere else."""

from pathlib import Path

import pytest

from clozeline.artifacts.start_lock import START_LOCK, StartLock, write_start_lock
from clozeline.errors import ArtifactError

PROJECT = Path(__file__).parents[2]
LOCK = StartLock(model="clozeline-encoder", version="3", text="ab", files={"config.json": "c0", "sub/w.bin": "1e"})


@pytest.mark.parametrize("lock", [LOCK, None])
def test_a_lock_is_read_back_and_has_the_same_bytes_each_time(tmp_path: Path, lock: StartLock | None) -> None:
    path = tmp_path / START_LOCK
    write_start_lock(path, lock)
    assert StartLock.read(path) == lock
    first = path.read_bytes()
    write_start_lock(path, lock and lock.model_copy(update={"files": dict(reversed(lock.files.items()))}))
    assert path.read_bytes() == first


def test_the_project_ships_a_lock_without_a_version(tmp_path: Path) -> None:
    write_start_lock(tmp_path / START_LOCK, None)
    assert (PROJECT / START_LOCK).read_bytes() == (tmp_path / START_LOCK).read_bytes()


def test_a_missing_lock_names_no_version(tmp_path: Path) -> None:
    assert StartLock.read(tmp_path / START_LOCK) is None


def test_the_key_is_that_of_the_files() -> None:
    assert LOCK.key.startswith("clozeline-encoder-3-")
    assert LOCK.model_copy(update={"text": "other"}).key == LOCK.key
    assert LOCK.model_copy(update={"files": {**LOCK.files, "config.json": "c1"}}).key != LOCK.key


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("config.json", "../config.json"),
        ("config.json", "/config.json"),
        ("model: clozeline-encoder", "model: ../encoder"),
        ("version: '3'", "version: latest"),
        ("text: ab\n", ""),
        ("files:", "files: ["),
    ],
)
def test_a_lock_that_leads_elsewhere_or_is_damaged_is_refused_by_name(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / START_LOCK
    write_start_lock(path, LOCK)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ArtifactError, match=START_LOCK) as caught:
        StartLock.read(path)
    assert f"rm {START_LOCK}" in caught.value.do
