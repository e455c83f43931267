"""Trained encoders of registered versions: weights, tokenizer and the keys of their texts, for a later training.

They lie beside the MLflow model of a version, so that no server downloads them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from mlflow.artifacts import download_artifacts
from mlflow.tracking import MlflowClient
from numpy.typing import NDArray

from clozeline.params.pretraining import Setting
from clozeline.records.reading.tokens import documents_path
from clozeline.records.record import Record
from clozeline.registry import models, start_lock, versions
from clozeline.system.errors import ArtifactError
from clozeline.system.files import held_beside, remove_folder, replacing_folder, sha256_of
from clozeline.system.workspace import Workspace, tracking_uri
from clozeline.tracking import addresses
from clozeline.tracking.mlflow import answering

_FOLDER = "trained"
# File beside the folder with the sha256 of each file; its own sha256 is a tag of the version.
_LIST = "trained.json"


@dataclass(frozen=True)
class TrainedEncoder:
    """A trained encoder that a release stores with a version."""

    files: Mapping[str, Path]  # by their paths in the folder of the version
    architecture: Mapping[str, Setting]  # settings that it was trained with, as in `StartLock`


class StoredEncoder(Record):
    """A trained encoder that was stored with a version: content of the list."""

    files: Mapping[str, str]  # sha256 of each file, by its path
    architecture: Mapping[str, Setting]


def store_trained(client: MlflowClient, run_id: str, trained: TrainedEncoder, tracking_uri: str) -> str:
    """Store `trained` in the run of a version; return the sha256 of its list."""
    files = {path: sha256_of(file) for path, file in sorted(trained.files.items())}
    listed = StoredEncoder(files=files, architecture=trained.architecture).model_dump_json(indent=2) + "\n"
    with answering(tracking_uri, f"run {run_id}"):
        for path, file in trained.files.items():
            client.log_artifact(run_id, str(file), Path(_FOLDER, path).parent.as_posix())
        client.log_text(run_id, listed, _LIST)
    return hashlib.sha256(listed.encode()).hexdigest()


def locked_champion(model: str, text: str, workspace: Workspace) -> start_lock.StartLock:
    """Return the champion of `model` as a lock for a training on `text`, a hash.

    Raises:
        ArtifactError: there is no champion, or its trained files are missing.
        TransientError: the registry does not answer.
    """
    address = tracking_uri(workspace)
    champion = versions.Registry.open(address).at(model, models.CHAMPION)
    if champion is None:
        raise ArtifactError(
            f"there is no champion of {model} to start from at {address}",
            do="train the first version without `start: champion` (`recipe: measured`), and release it",
        )
    stored = _stored(champion, address)
    return start_lock.StartLock(
        model=model, version=champion.version, text=text, files=stored.files, architecture=stored.architecture
    )


def _stored(version: models.Registered, tracking_uri: str) -> StoredEncoder:
    """Return the list of what was stored with `version`.

    Raises:
        ArtifactError: none were stored, or their list is missing or changed.
    """
    if not version.trained_sha256:
        raise ArtifactError(
            f"no training can start from {version}, which was released without its trained weights",
            do="run `clozeline run` with another `start` (`recipe: measured`): its release stores them",
        )
    with TemporaryDirectory() as folder:
        return StoredEncoder.read(_unchanged(version, _LIST, Path(folder), tracking_uri, version.trained_sha256))


def document_keys_of(version: models.Registered, split: str, tracking_uri: str) -> NDArray[np.uint64]:
    """Return the keys of the documents in a split of the text that `version` was trained on.

    Raises:
        ArtifactError: they were not stored with it, or were changed.
    """
    path = documents_path(Path(), split).name
    expected = _stored(version, tracking_uri).files.get(path)
    with TemporaryDirectory() as folder:
        file = _unchanged(version, f"{_FOLDER}/{path}", Path(folder), tracking_uri, expected)
        keys: NDArray[np.uint64] = np.load(file, allow_pickle=False)
        return keys


def check_still_registered(lock: start_lock.StartLock, workspace: Workspace) -> None:
    """Check that the registry still has the version of `lock`, with the same files.

    Raises:
        ArtifactError: it does not.
        TransientError: the registry does not answer.
    """
    registered = _stored(_version(lock, workspace), tracking_uri(workspace)).files
    for path in sorted({*lock.files, *registered}):
        if lock.files.get(path) != registered.get(path):
            raise _other_bytes(lock, path, f"sha256 {registered.get(path)} in the registry", lock.files.get(path))


def fetch_trained(lock: start_lock.StartLock, workspace: Workspace) -> Path:
    """Return the folder with the files of `lock`, below `work/start`; download it if it is missing or damaged.

    Raises:
        ArtifactError: the registry has no such version, or its files are gone or differ from the lock.
        TransientError: the registry does not answer.
    """
    copy = workspace.work / "start" / lock.key
    if _differing(copy, lock) is None:
        return copy
    version = _version(lock, workspace)
    with held_beside(copy) as temporary:
        fetched = _downloaded(version, _FOLDER, temporary, tracking_uri(workspace))
        if path := _differing(fetched, lock):
            file = fetched / path
            given = f"sha256 {sha256_of(file)}" if file.is_file() else "no such file"
            raise _other_bytes(lock, path, given, lock.files.get(path))
        with replacing_folder(copy) as folder:
            for path in lock.files:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (fetched / path).replace(folder / path)
    for other in copy.parent.glob(f"{lock.model}-*"):
        if other != copy:
            remove_folder(other)
    return copy


def _version(lock: start_lock.StartLock, workspace: Workspace) -> models.Registered:
    registry = versions.Registry.open(tracking_uri(workspace))
    try:
        return registry.version(lock.model, lock.version)
    except ArtifactError as error:
        problem = f"{start_lock.START_LOCK} names a version that the registry does not have: {lock}; {error.cause}"
        raise ArtifactError(problem, do=f"restore it; or {start_lock.RENEW}") from error


def _downloaded(version: models.Registered, what: str, into: Path, address: str) -> Path:
    run = versions.Registry.open(address).run_of(version)
    source = addresses.present(f"{run.info.artifact_uri}/{what}", address)
    with answering(address, files=f"trained files of {version}"):
        return Path(download_artifacts(artifact_uri=source, dst_path=str(into), tracking_uri=address))


def _unchanged(version: models.Registered, what: str, into: Path, address: str, sha256: str | None) -> Path:
    """Download a file that has to have this sha256; None: none was stored, so no file has it."""
    file = _downloaded(version, what, into, address)
    if (given := sha256_of(file)) != sha256:
        problem = f"{what} of {version} was changed: sha256 {given}, registered as {sha256}"
        raise ArtifactError(problem, do="restore it, or release the encoder again as a new version")
    return file


def _differing(folder: Path, lock: start_lock.StartLock) -> str | None:
    """Return the first path whose file in `folder` is missing or differs from the lock."""
    files = ((path, folder / path) for path in sorted(lock.files))
    return next((path for path, file in files if not file.is_file() or sha256_of(file) != lock.files[path]), None)


def _other_bytes(lock: start_lock.StartLock, path: str, given: str, expected: str | None) -> ArtifactError:
    problem = f"{path} of {lock} is not the file in {start_lock.START_LOCK}: {given}, not sha256 {expected}"
    return ArtifactError(problem, do=f"restore the file; or {start_lock.RENEW}")
