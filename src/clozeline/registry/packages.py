"""Local package folder of a registry URI."""

import re
from collections.abc import Collection
from pathlib import Path

import mlflow
from mlflow.artifacts import download_artifacts
from mlflow.tracking import MlflowClient

from clozeline.artifacts.export.manifest import FILES
from clozeline.errors import ArtifactError, ParamsError
from clozeline.registry import FetchedPackage, Registered, check_registered
from clozeline.registry.client import file_errors, registry_errors
from clozeline.registry.own_database import MODEL_URI, package_in
from clozeline.registry.versions import Registry
from clozeline.storage.atomic import remove_folder, replacing_folder
from clozeline.tracking.addresses import local_path, present
from clozeline.tracking.mlflow_adapter import loaded_as
from clozeline.workspace import Workspace, tracking_uri


def find_version(registry: Registry, uri: str) -> Registered:
    """Return the version behind `uri`.

    Raises:
        ParamsError: `uri` is not a registry URI.
        ArtifactError: the model, version or alias is missing.
        TransientError: the registry does not answer.
    """
    named = MODEL_URI.fullmatch(uri)
    if named is None:
        raise ParamsError(
            "this is not the URI of a registered model",
            given=uri,
            expected="models:/NAME@ALIAS or models:/NAME/VERSION",
            do="for example: models:/clozeline-encoder@champion",
        )
    if named["version"]:
        return registry.version(named["name"], named["version"])
    found = registry.at(named["name"], named["alias"])
    if found is None:
        raise ArtifactError(
            f"the registry has no {uri}",
            given=f"no version of {named['name']} has the alias {named['alias']}",
            expected="a released model",
            do="run `clozeline release` (or `make run`) first",
        )
    return found


def fetch_package(uri: str, workspace: Workspace) -> FetchedPackage:
    """Return the package behind `uri`: in place if it is on this machine, else as a copy under `work/registry`.

    Fetching a new copy for an alias removes the copies of this model's versions that no alias names any more.

    Raises:
        ParamsError, ArtifactError, TransientError: see `find_version`; or the files are gone.
    """
    address = tracking_uri(workspace)
    registry = Registry.open(address)
    version = find_version(registry, uri)
    with registry_errors(str(version), address):
        source = MlflowClient(address, registry_uri=address).get_model_version_download_uri(
            version.name, version.version
        )
    model = local_path(present(source, address))
    copy = workspace.work / "registry" / copy_name(version)
    if model is None and not copy.exists():
        with replacing_folder(copy) as folder, file_errors(f"files of {version}", address):
            download_artifacts(artifact_uri=source, dst_path=str(folder), tracking_uri=address)
        if "@" in uri:
            _forget(copy.parent, version, registry.named_versions(version.name))
    return FetchedPackage(_package_in(model or copy, version), version)


def copy_name(version: Registered) -> str:
    """Return the name, under `work/registry`, of the copy of a version."""
    return f"{version.name}-{version.version}-{version.package_sha256[:12]}"


def check_loaded_by_mlflow(package: Path) -> None:
    """Compare the package inside an MLflow model with the version that MLflow loaded it as.

    A model that MLflow loaded from a folder has no version and is not compared.

    Raises:
        ArtifactError: it differs from the registered package.
        TransientError: the registry does not answer.
    """
    loaded = loaded_as(package.parents[1])
    if loaded is None:
        return
    address = mlflow.get_registry_uri()
    version = Registry(MlflowClient(address, registry_uri=address), address).version(*loaded)
    check_registered(package, version)


def _forget(copies: Path, fetched: Registered, named: Collection[str]) -> None:
    """Remove the copies of the versions of this model that are neither `fetched` nor among `named`."""
    of_this_model = re.compile(rf"{re.escape(fetched.name)}-(?P<version>\d+)-[0-9a-f]*")
    for copy in copies.iterdir():
        found = of_this_model.fullmatch(copy.name)
        if found and found["version"] not in {fetched.version, *named}:
            remove_folder(copy)


def _package_in(model: Path, version: Registered) -> Path:
    folder = package_in(model)
    if folder is None:
        raise ArtifactError(
            f"the files of {version} are gone",
            given=f"no {FILES.manifest} under {model}",
            expected="the package that was registered",
            do="restore that folder, or release the model again as a new version",
        )
    return folder
