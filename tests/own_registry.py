"""A project's own registry, as releases leave it, written in a second."""

from pathlib import Path

from clozeline.records.package import package_sha256
from clozeline.registry.models import CANDIDATE, CHAMPION, PREVIOUS
from clozeline.registry.versions import Registry
from clozeline.system.workspace import Workspace
from clozeline.tracking.mlflow import experiment_id, prepare
from tests.tiny_packages import write_encoder

ENCODER = "clozeline-encoder"
PROCESSOR = "Some CPU, avx2"
SPEEDUP = 1.25


def write_registry(root: Path) -> None:
    """Write two versions of an encoder, the second as champion, served in INT8; and a model made elsewhere."""
    address = Workspace(root).defaults()["MLFLOW_TRACKING_URI"]
    client = prepare(address)
    run = client.create_run(experiment_id(client, address)).info.run_id
    registry = Registry.open(address)
    for number, precision in ((1, "fp32"), (2, "int8")):
        folder = root / "work" / "mlflow" / "artifacts" / f"m-{number}"
        write_encoder(folder / "artifacts" / "package")
        sha256 = package_sha256(folder / "artifacts" / "package")
        version = registry.register(ENCODER, source=folder.as_uri(), run_id=run, package_sha256=sha256, description="")
        registry.promote(registry.serve(version, precision, PROCESSOR, SPEEDUP))
    other = registry.register("theirs", source="s3://there/m", run_id=run, package_sha256="", description="")
    registry.promote(other)


def write_versions(database: Path) -> Path:
    """Write a registry in which version 2 is the champion, version 1 the previous one and version 3 the candidate."""
    registry = Registry.open(f"sqlite:///{database}")
    for number in "123":
        registry.register(ENCODER, source="file:///x", run_id="", package_sha256=number, description="")
        registry.nominate(registry.version(ENCODER, number))
        if number != "3":
            registry.promote(registry.version(ENCODER, number))
    return database


def aliases(registry: Registry) -> dict[str, str]:
    """Return the version behind each alias of the encoder."""
    found = {alias: registry.at(ENCODER, alias) for alias in (CHAMPION, PREVIOUS, CANDIDATE)}
    return {alias: version.version for alias, version in found.items() if version}
