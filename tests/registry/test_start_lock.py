"""start.lock names a version and its files, or none, and leads nowhere else."""

from pathlib import Path

import pytest

from clozeline.params.pretraining import PretrainParams, laid_over
from clozeline.records.record import leaves
from clozeline.registry.start_lock import START_LOCK, StartLock, write_start_lock
from clozeline.system.errors import ArtifactError, ParamsError
from tests.conftest import PROJECT

LOCK = StartLock(
    model="clozeline-encoder",
    version="3",
    text="ab",
    files={"config.json": "c0", "sub/w.bin": "1e"},
    architecture={"objective": "mlm", "model.size": None, "model.norm_epsilon": 1e-5},
)


@pytest.mark.parametrize("lock", [LOCK, None])
def test_a_start_lock_survives_a_round_trip_with_identical_bytes(tmp_path: Path, lock: StartLock | None) -> None:
    path = tmp_path / START_LOCK
    write_start_lock(path, lock)
    assert StartLock.of_yaml(path) == lock
    first = path.read_bytes()
    write_start_lock(path, lock and lock.model_copy(update={"files": dict(reversed(lock.files.items()))}))
    assert path.read_bytes() == first


def test_the_project_ships_a_lock_without_a_version(tmp_path: Path) -> None:
    write_start_lock(tmp_path / START_LOCK, None)
    assert (PROJECT / START_LOCK).read_bytes() == (tmp_path / START_LOCK).read_bytes()


def test_a_missing_lock_names_no_version(tmp_path: Path) -> None:
    assert StartLock.of_yaml(tmp_path / START_LOCK) is None


def test_the_key_of_a_lock_depends_only_on_version_and_files() -> None:
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
def test_a_lock_with_outside_paths_or_damage_is_refused_by_file_name(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / START_LOCK
    write_start_lock(path, LOCK)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ArtifactError, match=START_LOCK) as caught:
        StartLock.of_yaml(path)
    assert f"rm {START_LOCK}" in caught.value.do


@pytest.mark.parametrize(
    "changed",
    [{"objective": "clm"}, {"model": {"family": "bert"}}, {"model": {"max_position_embeddings": 96}}],
)
def test_params_that_ask_for_another_model_are_refused_with_both_values(
    tiny_pretraining: PretrainParams, changed: dict[str, object]
) -> None:
    lock = LOCK.model_copy(update={"architecture": tiny_pretraining.architecture})
    ((key, value),) = leaves(changed)
    with pytest.raises(ParamsError, match=f"cannot continue from {LOCK}") as caught:
        lock.check_architecture(PretrainParams.model_validate(laid_over(tiny_pretraining.model_dump(), changed)))
    assert caught.value.given == f"pretrain.{key}: {value}, not {tiny_pretraining.architecture[key]}"


def test_settings_that_only_affect_training_may_change(tiny_pretraining: PretrainParams) -> None:
    lock = LOCK.model_copy(update={"architecture": tiny_pretraining.architecture})
    changed = {"steps": 30, "model": {"dropout": 0.3, "initializer_range": 0.5}}
    lock.check_architecture(PretrainParams.model_validate(laid_over(tiny_pretraining.model_dump(), changed)))
