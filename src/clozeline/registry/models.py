"""Registered models: which version is the champion, where its package is, and from when on a fleet answers by it.

Importing this loads no MLflow, which takes two seconds. A server only asks which version is live and where its files
are: the project's own database answers that, if it has the known schema and the files are on this machine. Everything
else is left to MLflow.
"""

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from clozeline.records.package import FILES, Precision, package_sha256, read_manifest, verify
from clozeline.system.errors import ArtifactError, ParamsError
from clozeline.system.workspace import Workspace, tracking_uri
from clozeline.tracking.addresses import database_of, local_path, names_with, present, version_at

MODEL_PREFIX = "clozeline-"
CANDIDATE = "candidate"
CHAMPION = "champion"
PREVIOUS = "previous"
# Tag of a version: sha256 of the package's manifest, which holds the hash of each file.
PACKAGE_SHA256 = "clozeline.package_sha256"
# Tag of a version: sha256 over all files of its MLflow model, with the code that MLflow runs to load it.
MODEL_SHA256 = "clozeline.model_sha256"
# Tag of a version: signature of the package's manifest by OpenSSH.
SIGNATURE = "clozeline.signature"
SERVED = "clozeline.served"
SERVED_ON = "clozeline.served_on"
INT8_SPEEDUP = "clozeline.int8_speedup"
ROLLED_BACK = "clozeline.rolled_back"
# Tag of a version: the `Announcement` of its last promotion or rollback.
SERVE_FROM = "clozeline.serve_from"
TRAINED_SHA256 = "clozeline.trained_sha256"
PACKAGE = "package"  # the package folder among the artifacts of an MLflow model
_SERVED_AS: Mapping[str | None, Precision] = {"int8": "int8", "fp32": "fp32"}


NOTICE_VARIABLE = "CLOZELINE_SERVE_AFTER_SECONDS"
# Several polls of a server (10 s each) and the time to fetch and load a model.
_NOTICE_SECONDS = 60.0
_BETWEEN = ", announced "
MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/]+)|/(?P<version>\d+))")


@dataclass(frozen=True, slots=True)
class Announcement:
    """Two moments, in seconds since 1970: when a champion was announced, and from when on it answers."""

    announced_seconds: float
    serve_from_seconds: float

    @classmethod
    def now(cls, *, is_first: bool = False) -> Self:
        """Announce a champion now; the first one of a model replaces none, and answers at once.

        Raises:
            ParamsError: CLOZELINE_SERVE_AFTER_SECONDS is not a number from 0 up.
        """
        seconds = time.time()
        return cls(seconds, seconds if is_first else seconds + _notice_seconds())

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the announcement that `str` wrote; None if the tag was edited to something else."""
        serve_from, _, announced = text.partition(_BETWEEN)
        try:
            return cls(datetime.fromisoformat(announced).timestamp(), datetime.fromisoformat(serve_from).timestamp())
        except ValueError:
            return None

    def __str__(self) -> str:
        serve_from, announced = (
            datetime.fromtimestamp(seconds, UTC).isoformat()
            for seconds in (self.serve_from_seconds, self.announced_seconds)
        )
        return f"{serve_from}{_BETWEEN}{announced}"


def _notice_seconds() -> float:
    given = os.environ.get(NOTICE_VARIABLE, "")
    try:
        seconds = float(given or _NOTICE_SECONDS)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ParamsError(f"{NOTICE_VARIABLE}={given} is not a number of seconds from 0 up", do="correct or unset it")
    return seconds


@dataclass(frozen=True, slots=True)
class Registered:
    """One version of one model."""

    name: str
    version: str
    run_id: str  # MLflow run that holds its evidence
    package_sha256: str
    was_rolled_back: bool  # whether it was rolled back by hand; a release then holds it instead of promoting it
    # Precision to serve by default, chosen by the timings of the release; None: the one that the manifest names.
    served: Precision | None = None
    served_on: str | None = None  # processor of those timings, as named by `clozeline.system.machine`
    int8_speedup: float | None = None  # time of fp32 / time of INT8, measured by the release on that processor
    address: str = ""  # address of its files, as MLflow recorded it at registration
    signature: str = ""  # signature of its package by OpenSSH
    model_sha256: str = ""  # sha256 over all files of its MLflow model; empty for versions of earlier releases
    trained_sha256: str = ""  # sha256 of the list of its trained files; empty if none were stored with it
    # When the servers of a fleet answer by it; None: it was never made the champion.
    announcement: Announcement | None = field(default=None, compare=False)  # each promotion gives it a new one

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
            model_sha256=tags.get(MODEL_SHA256, ""),
            trained_sha256=tags.get(TRAINED_SHA256, ""),
            announcement=Announcement.parse(tags.get(SERVE_FROM, "")),
        )

    def __str__(self) -> str:
        return f"{self.name} version {self.version}"


@dataclass(frozen=True, slots=True)
class FetchedPackage:
    """A package on this machine."""

    folder: Path  # folder like `dist/<model>/`: the ONNX graphs, the tokenizer, the manifest
    version: Registered | None  # None for a folder that does not come from the registry


def model_name(package: str) -> str:
    """Return the registered name of `dist/<package>`."""
    return f"{MODEL_PREFIX}{package}"


def fetch(uri: str, workspace: Workspace | None = None) -> FetchedPackage:
    """Return the package behind `models:/NAME@ALIAS` or `models:/NAME/VERSION`, and its version.

    Raises:
        ArtifactError: the model, version or alias is missing, or its files are gone or differ from the registered ones.
        TransientError: the registry does not answer.
    """
    workspace = workspace or Workspace(Path.cwd())
    _check_there_is_one(uri, tracking_uri(workspace))
    found = package_in_own_database(tracking_uri(workspace), uri)
    if found is None:
        from clozeline.registry.versions import fetch_package

        found = fetch_package(uri, workspace)
    check_registered(*found)
    return FetchedPackage(*found)


def check_registered(folder: Path, version: Registered) -> None:
    """Compare the package in `folder` with the tag of `version`, and each of its files with its manifest.

    Files that the caller will not open are compared too: a damaged fp32 graph must not wait until INT8 is withdrawn.

    Raises:
        ArtifactError: something differs, or the tag is missing.
    """
    given = package_sha256(folder)
    if given != version.package_sha256:
        raise ArtifactError(
            f"{folder} is not {version}: package sha256 {given}, not {version.package_sha256 or 'known'}",
            do="restore the files, or register them as a new version: `clozeline release`",
        )
    verify(folder, read_manifest(folder))


def live_version(uri: str, workspace: Workspace | None = None) -> Registered:
    """Return the current version behind `uri` without fetching files; raises the same errors as `fetch`."""
    address = tracking_uri(workspace or Workspace(Path.cwd()))
    _check_there_is_one(uri, address)
    found = live_in_own_database(address, uri)
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
    names = names_in_own_database(tracking_uri(workspace), CHAMPION)
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
            f"there is no registry to find {uri} in: no {database}",
            do="change to the folder of a project with a release, or `export MLFLOW_TRACKING_URI=http://…`",
        )


def names_in_own_database(tracking_uri: str, alias: str) -> list[str] | None:
    """Return the names of our models that have `alias`; None: ask MLflow."""
    names = names_with(tracking_uri, alias)
    return None if names is None else [name for name in names if name.startswith(MODEL_PREFIX)]


def live_in_own_database(tracking_uri: str, uri: str) -> Registered | None:
    """Return the version behind `uri`; None: ask MLflow, which also reports what is wrong."""
    named = MODEL_URI.fullmatch(uri)
    found = version_at(tracking_uri, **named.groupdict()) if named else None
    return Registered.of(named["name"], *found) if named and found else None


def package_in_own_database(tracking_uri: str, uri: str) -> tuple[Path, Registered] | None:
    """Return folder and version of the package behind `uri`, in its place; None: it is elsewhere, or ask MLflow."""
    found = live_in_own_database(tracking_uri, uri)
    model = local_path(present(found.address, tracking_uri)) if found else None
    folder = package_in(model) if model else None
    return (folder, found) if found and folder else None


def package_in(model: Path) -> Path | None:
    """Return the package folder inside an MLflow model; None if it has no manifest."""
    manifest = next(model.glob(f"**/{FILES.manifest}"), None)
    return manifest.parent if manifest else None
