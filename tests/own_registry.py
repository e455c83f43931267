"""A project's own registry, as releases leave it, written in a second."""

from pathlib import Path

from clozeline.records.package import package_sha256
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
