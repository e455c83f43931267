"""Registered models: which version is the champion, and where its package is. Importing this loads no MLflow."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from clozeline.registry.announcement import Announcement
from clozeline.system.errors import ArtifactError
from clozeline.system.workspace import Workspace, tracking_uri
from clozeline.tracking.addresses import database_of

if TYPE_CHECKING:
    from clozeline.records.package import Precision


MODEL_PREFIX: Final = "clozeline-"
CANDIDATE: Final = "candidate"
CHAMPION: Final = "champion"
PREVIOUS: Final = "previous"
PACKAGE_SHA256: Final = "clozeline.package_sha256"
"""Tag of a version: sha256 of the package's manifest, which holds the hash of each file."""
SIGNATURE: Final = "clozeline.signature"
"""Tag of a version: signature of the package's manifest by OpenSSH."""
SERVED: Final = "clozeline.served"
SERVED_ON: Final = "clozeline.served_on"
INT8_SPEEDUP: Final = "clozeline.int8_speedup"
ROLLED_BACK: Final = "clozeline.rolled_back"
SERVE_FROM: Final = "clozeline.serve_from"
"""Tag of a version: the `Announcement` of its last promotion or rollback."""
TRAINED_SHA256: Final = "clozeline.trained_sha256"
PACKAGE: Final = "package"  # the package folder among the artifacts of an MLflow model
_SERVED_AS: Final[Mapping[str | None, "Precision"]] = MappingProxyType({"int8": "int8", "fp32": "fp32"})


@dataclass(frozen=True, slots=True)
class Registered:
    """One version of one model."""

    name: str
    version: str
    run_id: str
    """MLflow run that holds its evidence."""
    package_sha256: str
    was_rolled_back: bool
    """Whether it was rolled back by hand; a release then holds it instead of promoting it."""
    served: "Precision | None" = None
    """Precision to serve by default, chosen by the timings of the release; None: the one that the manifest names."""
    served_on: str | None = None
    """Processor of those timings, as named by `clozeline.system.machine`."""
    int8_speedup: float | None = None
    """Time of fp32 / time of INT8, measured by the release on that processor."""
    address: str = ""
    """Address of its files, as MLflow recorded it at registration."""
    signature: str = ""
    """Signature of its package by OpenSSH."""
    trained_sha256: str = ""
    """sha256 of the list of its trained files; empty if none were stored with it."""
    announcement: Announcement | None = field(default=None, compare=False)  # each promotion gives it a new one
    """When the servers of a fleet answer by it; None: it was never made the champion."""

    @classmethod
    def of(cls, name: str, version: str, run_id: str, address: str, tags: Mapping[str, str]) -> "Registered":
        """Return the version that MLflow recorded with these tags."""
        return cls(
            name=name,
            version=version,
            run_id=run_id,
            package_sha256=tags.get(PACKAGE_SHA256, ""),
            was_rolled_back=tags.get(ROLLED_BACK) == "true",
            served=_SERVED_AS.get(tags.get(SERVED)),
            served_on=tags.get(SERVED_ON),
            int8_speedup=float(tags[INT8_SPEEDUP]) if INT8_SPEEDUP in tags else None,
            address=address,
            signature=tags.get(SIGNATURE, ""),
            trained_sha256=tags.get(TRAINED_SHA256, ""),
            announcement=Announcement.parse(tags.get(SERVE_FROM, "")),
        )

    def __str__(self) -> str:
        return f"{self.name} version {self.version}"


@dataclass(frozen=True, slots=True)
class FetchedPackage:
    """The package of a registered version, on this machine."""

    folder: Path
    """Folder like `dist/<model>/`: the ONNX graphs, the tokenizer, the manifest."""
    version: Registered


def model_name(package: str) -> str:
    """Return the registered name of `dist/<package>`."""
    return f"{MODEL_PREFIX}{package}"


def resolve(uri: str) -> Path:
    """Return the package folder of `models:/NAME@ALIAS` or `models:/NAME/VERSION`.

    Raises:
        ArtifactError: the model, version or alias is missing, or its files are gone or differ from the registered ones.
        TransientError: the registry does not answer.
    """
    return fetch(uri).folder


def fetch(uri: str, workspace: Workspace | None = None) -> FetchedPackage:
    """Return the package of `uri` and its version; raises the same errors as `resolve`."""
    from clozeline.registry import own_database

    workspace = workspace or Workspace(Path.cwd())
    _check_there_is_one(uri, tracking_uri(workspace))
    found = own_database.package(tracking_uri(workspace), uri)
    if found is None:
        from clozeline.registry.versions import fetch_package

        found = fetch_package(uri, workspace)
    check_registered(found.folder, found.version)
    return found


def check_registered(folder: Path, version: Registered) -> None:
    """Compare the package in `folder` with the tag of `version`, and each of its files with its manifest.

    Files that the caller will not open are compared too: a damaged fp32 graph must not wait until INT8 is withdrawn.

    Raises:
        ArtifactError: something differs, or the tag is missing.
    """
    from clozeline.records.package import package_sha256, read_manifest, verify

    given = package_sha256(folder)
    if given != version.package_sha256:
        raise ArtifactError(
            f"the files of {version} are not those that were registered",
            given=f"{folder}: package sha256 {given}",
            expected=f"{version.package_sha256 or 'a sha256, which the version lacks'} (tag {PACKAGE_SHA256})",
            do="restore the files, or register them as a new version: `clozeline release`",
        )
    verify(folder, read_manifest(folder))


def live_version(uri: str, workspace: Workspace | None = None) -> Registered:
    """Return the current version behind `uri` without fetching files; raises the same errors as `resolve`."""
    from clozeline.registry import own_database

    address = tracking_uri(workspace or Workspace(Path.cwd()))
    _check_there_is_one(uri, address)
    found = own_database.live(address, uri)
    if found is not None:
        return found
    from clozeline.registry.versions import Registry, find_version

    return find_version(Registry.open(address), uri)


def champions(workspace: Workspace | None = None) -> list[str]:
    """Return `models:/NAME@champion` for every model with a champion, the encoder first; [] without a registry.

    Raises:
        ArtifactError: the local database is damaged, or the server refuses the caller.
        TransientError: the registry does not answer.
    """
    workspace = workspace or Workspace(Path.cwd())
    if not (os.environ.get("MLFLOW_TRACKING_URI") or (workspace.mlflow / "mlflow.db").exists()):
        return []
    from clozeline.registry import own_database

    names = own_database.names_with(tracking_uri(workspace), CHAMPION)
    if names is None:
        from clozeline.registry.versions import Registry

        names = Registry.open(tracking_uri(workspace)).names_with(CHAMPION)
    encoder_first = sorted(names, key=lambda name: (name != model_name("encoder"), name))
    return [f"models:/{name}@{CHAMPION}" for name in encoder_first]


def _check_there_is_one(uri: str, address: str) -> None:
    """Refuse an address whose database file is missing: MLflow would silently create an empty database there."""
    database = database_of(address)
    if database is not None and not database.exists():
        raise ArtifactError(
            f"there is no registry to find {uri} in",
            given=f"no {database}",
            expected="the database of a project with a release, or the address of an MLflow server",
            do="change to the folder of the project, or `export MLFLOW_TRACKING_URI=http://…`",
        )
