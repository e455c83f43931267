"""A version keeps what a later training continues from, and such a training gets exactly that or is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clozeline.params.pretraining import PretrainParams, laid_over
from clozeline.records.record import leaves
from clozeline.registry import models
from clozeline.registry.publishing import Evidence, Publisher
from clozeline.registry.start_lock import START_LOCK, StartLock, write_start_lock
from clozeline.registry.trained import TrainedEncoder, check_still_registered, fetch_trained, locked_champion
from clozeline.system.errors import ArtifactError, ParamsError, TransientError
from clozeline.system.workspace import Workspace
from tests.conftest import PROJECT

NAME = "clozeline-encoder"
WEIGHTS, INNER = "model.safetensors", "generator/config.json"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, encoder_package: Path) -> Path:
    """Folder of a project with a champion that has trained files, and an older version without."""
    root = tmp_path_factory.mktemp("trained") / "project"
    files = {path: root / "models" / path for path in (WEIGHTS, INNER)}
    for path, file in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    trained = TrainedEncoder(files, {"objective": "mlm"})
    publisher = Publisher(Workspace(root).defaults()["MLFLOW_TRACKING_URI"])
    bare = shutil.copytree(encoder_package, root / "bare")
    (bare / "manifest.json").write_text((bare / "manifest.json").read_text() + "\n")
    publisher.publish(bare, NAME, Evidence({}, {}))
    publisher.registry.promote(publisher.publish(encoder_package, NAME, Evidence({}, {}, trained=trained)))
    return root


@pytest.fixture
def workspace(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    workspace = Workspace(shutil.copytree(template, tmp_path / "project"))
    for name, value in workspace.defaults().items():
        monkeypatch.setenv(name, value)
    return workspace


@pytest.fixture
def lock(workspace: Workspace) -> StartLock:
    return locked_champion(NAME, "text", workspace)


def test_the_trained_files_of_the_champion_are_fetched_unchanged(
    workspace: Workspace, lock: StartLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetched files need no registry; a damaged copy is fetched again, and the copy of old ones is removed."""
    assert (lock.version, lock.text, set(lock.files)) == ("2", "text", {WEIGHTS, INNER})
    assert lock.architecture == {"objective": "mlm"}
    served = models.fetch(f"models:/{NAME}@champion", workspace).folder
    model = next(folder for folder in served.parents if (folder / "MLmodel").is_file())
    assert not list(model.rglob("*.safetensors")), "servers do not download trained files"
    (workspace.work / "start" / f"{NAME}-1-0123456789ab").mkdir(parents=True)
    folder = fetch_trained(lock, workspace)
    assert list((workspace.work / "start").iterdir()) == [folder] == [workspace.work / "start" / lock.key]
    assert {path: (folder / path).read_text() for path in lock.files} == {WEIGHTS: WEIGHTS, INNER: INNER}
    check_still_registered(lock, workspace)
    (folder / WEIGHTS).write_text("damaged")
    assert (fetch_trained(lock, workspace) / WEIGHTS).read_text() == WEIGHTS
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert fetch_trained(lock, workspace) == folder
    with pytest.raises(TransientError, match="does not answer"):
        locked_champion(NAME, "text", workspace)


@pytest.mark.parametrize("change", [Path.unlink, lambda file: file.write_text("other weights")])
def test_files_that_differ_from_the_lock_are_refused_by_name(
    workspace: Workspace, lock: StartLock, change: Callable[[Path], object]
) -> None:
    edited = lock.model_copy(update={"files": {**lock.files, INNER: "0" * 64}})
    for ask in (check_still_registered, fetch_trained):
        with pytest.raises(ArtifactError, match=f"{INNER} of {NAME} version 2 is not the file in {START_LOCK}"):
            ask(edited, workspace)
    (stored,) = (workspace.mlflow / "artifacts").rglob(f"trained/{WEIGHTS}")
    change(stored)
    with pytest.raises(ArtifactError, match=f"{WEIGHTS} of {NAME} version 2 is not the file in {START_LOCK}"):
        fetch_trained(lock, workspace)
    assert not (workspace.work / "start" / lock.key).exists()
    (listed,) = (workspace.mlflow / "artifacts").rglob("trained.json")
    listed.write_text(listed.read_text().replace(WEIGHTS, "other.safetensors"))
    with pytest.raises(ArtifactError, match=f"trained.json of {NAME} version 2 was changed"):
        locked_champion(NAME, "text", workspace)


def test_training_needs_a_champion_with_trained_files_to_continue(workspace: Workspace, lock: StartLock) -> None:
    client = MlflowClient(workspace.defaults()["MLFLOW_TRACKING_URI"])
    client.set_registered_model_alias(NAME, "champion", "1")
    with pytest.raises(ArtifactError, match=f"no training can start from {NAME} version 1"):
        locked_champion(NAME, "text", workspace)
    client.delete_registered_model_alias(NAME, "champion")
    with pytest.raises(ArtifactError, match=f"no champion of {NAME}"):
        locked_champion(NAME, "text", workspace)
    client.delete_model_version(NAME, lock.version)
    for ask in (check_still_registered, fetch_trained):
        with pytest.raises(ArtifactError, match=START_LOCK) as caught:
            ask(lock, workspace)
        assert f"{NAME} version 2" in caught.value.cause
        assert f"rm {START_LOCK}" in caught.value.do


def test_a_repeated_release_adds_missing_trained_files(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / WEIGHTS).write_text("weights")
    trained = TrainedEncoder({WEIGHTS: tmp_path / WEIGHTS}, {})
    publisher = Publisher(workspace.defaults()["MLFLOW_TRACKING_URI"])
    bare = publisher.publish(workspace.root / "bare", NAME, Evidence({}, {}))
    assert not bare.trained_sha256
    version = publisher.publish(workspace.root / "bare", NAME, Evidence({}, {}, trained=trained))
    assert version.version == bare.version
    publisher.registry.promote(version)
    lock = locked_champion(NAME, "text", workspace)
    assert (fetch_trained(lock, workspace) / WEIGHTS).read_text() == "weights"


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
    assert StartLock.of_yaml(path) is None
    write_start_lock(path, lock)
    assert StartLock.of_yaml(path) == lock
    first = path.read_bytes()
    write_start_lock(path, lock and lock.model_copy(update={"files": dict(reversed(lock.files.items()))}))
    assert path.read_bytes() == first
    assert lock or (PROJECT / START_LOCK).read_bytes() == first, "the project ships a lock without a version"
    assert LOCK.key.startswith("clozeline-encoder-3-")
    assert LOCK.model_copy(update={"text": "other"}).key == LOCK.key
    assert LOCK.model_copy(update={"files": {**LOCK.files, "config.json": "c1"}}).key != LOCK.key


def test_a_lock_with_outside_paths_or_damage_is_refused_by_file_name(tmp_path: Path) -> None:
    for old, new in (
        ("config.json", "../config.json"),
        ("config.json", "/config.json"),
        ("version: '3'", "version: latest"),
        ("model: clozeline-encoder", "model: ../encoder"),
        ("text: ab\n", ""),
        ("files:", "files: ["),
    ):
        path = tmp_path / START_LOCK
        write_start_lock(path, LOCK)
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
        with pytest.raises(ArtifactError, match=START_LOCK) as caught:
            StartLock.of_yaml(path)
        assert f"rm {START_LOCK}" in caught.value.do


def test_params_that_ask_for_another_model_are_refused_with_both_values(tiny_pretraining: PretrainParams) -> None:
    lock = LOCK.model_copy(update={"architecture": tiny_pretraining.architecture})
    training_alone = {"steps": 30, "model": {"dropout": 0.3, "initializer_range": 0.5}}
    lock.check_architecture(PretrainParams.model_validate(laid_over(tiny_pretraining.model_dump(), training_alone)))
    for changed in ({"objective": "clm"}, {"model": {"max_position_embeddings": 96}}):
        ((key, value),) = leaves(changed)
        with pytest.raises(ParamsError) as caught:
            lock.check_architecture(PretrainParams.model_validate(laid_over(tiny_pretraining.model_dump(), changed)))
        assert f"pretrain.{key}: {value}, not {tiny_pretraining.architecture[key]}" in caught.value.cause
