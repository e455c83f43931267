"""The registered models: which version is live, and where its package is. Importing this loads no MLflow."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clozeline.errors import ArtifactError
from clozeline.tracking.addresses import database_of
from clozeline.workspace import Workspace, tracking_uri

if TYPE_CHECKING:
    from clozeline.artifacts.manifest import Precision

MODEL_PREFIX: Final = "clozeline-"
CANDIDATE: Final = "candidate"
CHAMPION: Final = "champion"
PREVIOUS: Final = "previous"
PACKAGE: Final = "package"  # the package folder among the artifacts of an MLflow model


@dataclass(frozen=True, slots=True)
class FetchedPackage:
    """The package of a registered version, on this machine."""

    folder: Path
    """As `dist/<model>/`: the ONNX graphs, the tokenizer, the manifest."""
    name: str
    version: str
    served: "Precision | None" = None
    """The graph that was found to answer sooner where it was released; None: what its manifest says."""
    served_on: str | None = None
    """The processor that this was found on, as `clozeline.machine.processor` calls it."""


def model_name(package: str) -> str:
    """What `dist/<package>` is registered as."""
    return f"{MODEL_PREFIX}{package}"


def resolve(uri: str) -> Path:
    """The package folder behind `models:/NAME@ALIAS` or `models:/NAME/VERSION`.

    Raises:
        ArtifactError: there is no such model, version, or alias, or its files are gone.
        TransientError: the registry does not answer.
    """
    return fetch(uri).folder


def fetch(uri: str, workspace: Workspace | None = None) -> FetchedPackage:
    """As `resolve`, with the version that the alias stands for; raises the same."""
    from clozeline.registry import own_database

    workspace = workspace or Workspace(Path.cwd())
    _check_there_is_one(uri, tracking_uri(workspace))
    found = own_database.package(tracking_uri(workspace), uri)
    if found is not None:
        return found
    from clozeline.registry.packages import fetch_package

    return fetch_package(uri, workspace)


def live_version(uri: str, workspace: Workspace | None = None) -> str:
    """The version that `models:/NAME@ALIAS` stands for now, nothing fetched; raises as `resolve`."""
    from clozeline.registry import own_database

    address = tracking_uri(workspace or Workspace(Path.cwd()))
    _check_there_is_one(uri, address)
    found = own_database.live(address, uri)
    if found is not None:
        return found.version
    from clozeline.registry.packages import find_version
    from clozeline.registry.versions import Registry

    return find_version(Registry.open(address), uri).version


def champions(workspace: Workspace | None = None) -> list[str]:
    """`models:/NAME@champion` of every model that has one, the encoder first; none if there is no registry yet.

    Raises:
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
    """MLflow would make a new database of what is not there, wherever somebody asks by mistake."""
    database = database_of(address)
    if database is not None and not database.exists():
        raise ArtifactError(
            f"there is no registry to find {uri} in",
            given=f"no {database}",
            expected="the database of a project in which something was released, or the address of a server",
            do="go to the folder of the project, or `export MLFLOW_TRACKING_URI=http://…`",
        )
