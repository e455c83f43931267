"""History of a package in the registry: its version, the newest decision about it, and its latency."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlflow.artifacts import download_artifacts, list_artifacts

from clozeline.artifacts.export.manifest import package_sha256, read_manifest
from clozeline.registry import CANDIDATE, CHAMPION, PREVIOUS, model_name
from clozeline.registry.client import registry_errors
from clozeline.registry.decision import Decision
from clozeline.registry.versions import Registered, Registry
from clozeline.tracking.addresses import present
from clozeline.tracking.database import prepare

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
    client = prepare(tracking_uri)
    with registry_errors(f"run of {version}", tracking_uri):
        run = client.get_run(version.run_id)
    decision = newest_decision_about(version, tracking_uri)
    held = {alias: registry.at(version.name, alias) for alias in (CHAMPION, CANDIDATE, PREVIOUS)}
    metrics = run.data.metrics
    return Released(
        version=version,
        aliases=tuple(alias for alias, holder in held.items() if holder and holder.version == version.version),
        decision=decision,
        latency={key.removeprefix(_LATENCY): value for key, value in metrics.items() if key.startswith(_LATENCY)},
    )


def newest_decision_about(version: Registered, tracking_uri: str) -> Decision | None:
    """Return the newest decision about `version`; None if its release was cut off before.

    Raises:
        ArtifactError: the run that holds the version's evidence is missing.
        TransientError: the registry does not answer.
    """
    with registry_errors(f"run of {version}", tracking_uri):
        run = prepare(tracking_uri).get_run(version.run_id)
        return _newest_decision(present(f"{run.info.artifact_uri}/decisions", tracking_uri), tracking_uri)


def _newest_decision(decisions: str, tracking_uri: str) -> Decision | None:
    stored = list_artifacts(artifact_uri=decisions, tracking_uri=tracking_uri)
    newest = max((Path(file.path).name for file in stored), default=None)
    if newest is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        address = f"{decisions}/{newest}"
        file = Path(download_artifacts(artifact_uri=address, dst_path=folder, tracking_uri=tracking_uri))
        return Decision.model_validate(json.loads(file.read_text(encoding="utf-8")))
