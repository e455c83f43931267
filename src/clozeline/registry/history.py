"""History of a package in the registry: its version, the newest decision about it, and its latency."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlflow.artifacts import download_artifacts, list_artifacts
from mlflow.entities import Run

from clozeline.artifacts.export.manifest import package_sha256, read_manifest
from clozeline.registry import CANDIDATE, CHAMPION, PREVIOUS, Registered, model_name
from clozeline.registry.client import registry_errors
from clozeline.registry.decision import Decision
from clozeline.registry.versions import Registry
from clozeline.tracking.addresses import present

_LATENCY = "latency/"


@dataclass(frozen=True)
class Released:
    """A registered package."""

    version: Registered
    aliases: tuple[str, ...]
    """Aliases that the version holds now."""
    decision: Decision | None
    """The newest decision; None: the release was cut off after registering the version."""
    latency: Mapping[str, float]
    """Figures of `inference.latency` on the machine that released it last."""


def released(tracking_uri: str, package: Path) -> Released | None:
    """Return the history of the package in this folder; None if it was never registered.

    Raises:
        TransientError: the registry does not answer.
        ArtifactError: the package, or the run that holds the version's evidence, is missing.
    """
    read_manifest(package)
    registry = Registry.open(tracking_uri)
    version = registry.with_package(model_name(package.name), package_sha256(package))
    if version is None:
        return None
    run = registry.run_of(version)
    held = {alias: registry.at(version.name, alias) for alias in (CHAMPION, CANDIDATE, PREVIOUS)}
    metrics = run.data.metrics
    return Released(
        version=version,
        aliases=tuple(alias for alias, holder in held.items() if holder and holder.version == version.version),
        decision=_newest_decision(version, run, tracking_uri),
        latency={key.removeprefix(_LATENCY): value for key, value in metrics.items() if key.startswith(_LATENCY)},
    )


def newest_decision_about(version: Registered, tracking_uri: str) -> Decision | None:
    """Return the newest decision about `version`; None if its release was cut off before.

    Raises:
        ArtifactError: the run that holds the version's evidence is missing.
        TransientError: the registry does not answer.
    """
    return _newest_decision(version, Registry.open(tracking_uri).run_of(version), tracking_uri)


def _newest_decision(version: Registered, run: Run, tracking_uri: str) -> Decision | None:
    decisions = present(f"{run.info.artifact_uri}/decisions", tracking_uri)
    with registry_errors(f"run of {version}", tracking_uri), tempfile.TemporaryDirectory() as folder:
        stored = list_artifacts(artifact_uri=decisions, tracking_uri=tracking_uri)
        newest = max((Path(file.path).name for file in stored), default=None)
        if newest is None:
            return None
        address = f"{decisions}/{newest}"
        file = Path(download_artifacts(artifact_uri=address, dst_path=folder, tracking_uri=tracking_uri))
        return Decision.model_validate_json(file.read_bytes())
