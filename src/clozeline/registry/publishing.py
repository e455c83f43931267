"""Registers a package as a model version: its files as an MLflow model, with the evidence beside them."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import mlflow
from mlflow.artifacts import download_artifacts
from mlflow.tracking import MlflowClient

from clozeline.inference.package import kind_of, load
from clozeline.records.package import CARD, Manifest, package_sha256, read_manifest
from clozeline.registry import decisions, models, versions
from clozeline.registry.trained import TrainedEncoder, store_trained
from clozeline.registry.wheel import write_wheel
from clozeline.system.errors import ArtifactError
from clozeline.system.files import sha256_of_files
from clozeline.tracking.addresses import present
from clozeline.tracking.delivery import close_killed
from clozeline.tracking.mlflow import answering, experiment_id, prepare

_MODEL = "model"
_EVIDENCE = "evidence"
LOCK = "dvc.lock"
METRICS = "metrics"


@dataclass(frozen=True)
class Evidence:
    """Files that record the lineage and the quality of a package, keyed by the name that they are stored under."""

    files: Mapping[str, Path]
    tags: Mapping[str, str]
    trained: TrainedEncoder | None = None  # the trained model, for a later training; no server fetches it
    # Section of the model card in Markdown, with the facts of the release; also in the version's description.
    card: str = ""


class Publisher:
    """Registers packages at one address."""

    def __init__(self, tracking_uri: str) -> None:
        self._tracking_uri = tracking_uri
        self._client: MlflowClient = prepare(tracking_uri)
        self.registry = versions.Registry(self._client, tracking_uri)

    def close_killed(self, workspace: str) -> None:
        """Close the runs that killed releases of `workspace` left open; the caller holds its run lock."""
        with answering(self._tracking_uri, "runs of killed releases"):
            close_killed(self._client, experiment_id(self._client, self._tracking_uri), workspace)

    def publish(self, package: Path, name: str, evidence: Evidence) -> models.Registered:
        """Return the version of `name` with exactly this package; register a new one if it is missing.

        A moved project gets a new version too, because the address of a version's files cannot be changed.
        """
        sha256 = package_sha256(package)
        known = self.registry.with_package(name, sha256)
        if known and present(known.address, self._tracking_uri) == known.address:
            if self.registry.run_of(known).info.status != "FINISHED":  # the release was killed after it registered it
                with answering(self._tracking_uri, f"run of {known}"):
                    self._client.set_terminated(known.run_id, status="FINISHED")
            return self._with_trained(known, evidence.trained)
        with self._run(f"release {name}", evidence.tags) as run_id:
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary)
                _save(package, folder / _MODEL)
                model_sha256 = sha256_of_files(folder / _MODEL)
                for stored, file in evidence.files.items():
                    (folder / _EVIDENCE / stored).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, folder / _EVIDENCE / stored)
                _write_card(package, evidence.card, folder / _EVIDENCE)
                with answering(self._tracking_uri, f"run of {name}"):
                    self._client.log_artifacts(run_id, str(folder))
            source = f"{self._client.get_run(run_id).info.artifact_uri}/{_MODEL}"
            manifest = read_manifest(package)
            registered = self.registry.register(
                name,
                source=source,
                run_id=run_id,
                package_sha256=sha256,
                model_sha256=model_sha256,
                description=f"{_description(manifest)}\n\n{evidence.card}".strip(),
                was_rolled_back=known is not None and known.was_rolled_back,
            )
            return self._with_trained(registered, evidence.trained)

    def _with_trained(self, version: models.Registered, trained: TrainedEncoder | None) -> models.Registered:
        """Store the trained model with `version`, unless it is there: an earlier release stored none, or was killed."""
        if trained is None or version.trained_sha256:
            return version
        sha256 = store_trained(self._client, version.run_id, trained, self._tracking_uri)
        self.registry.tag(version, models.TRAINED_SHA256, sha256)
        return replace(version, trained_sha256=sha256)

    @contextmanager
    def evidence(self, version: models.Registered) -> Iterator[Path]:
        """Yield a temporary folder with copies of the evidence of `version`.

        Raises:
            ArtifactError: the evidence is gone.
        """
        with tempfile.TemporaryDirectory() as folder:
            run = self.registry.run_of(version)
            source = present(f"{run.info.artifact_uri}/{_EVIDENCE}", self._tracking_uri)
            with answering(self._tracking_uri, files=f"evidence files of {version}"):
                download_artifacts(artifact_uri=source, dst_path=folder, tracking_uri=self._tracking_uri)
            yield Path(folder) / _EVIDENCE

    def check(self, version: models.Registered, texts: Sequence[str]) -> None:
        """Compare the stored files of `version` with its tags, of earlier releases only the package, and let it answer.

        Its code, which `mlflow.pyfunc.load_model` runs for others, is compared and never run here: who may write to
        the store of files must not run code on the machine that releases.

        Raises:
            ArtifactError: a file is missing or was changed, or the package does not answer every text.
        """
        with tempfile.TemporaryDirectory() as copy:
            source = present(version.address, self._tracking_uri)
            with answering(self._tracking_uri, files=f"files of {version}"):
                download_artifacts(artifact_uri=source, dst_path=copy, tracking_uri=self._tracking_uri)
            model = Path(copy) / _MODEL
            package = models.package_in(model)
            if package is None:
                raise ArtifactError(f"{version} has no package at {source}", do="release it again as a new version")
            models.check_registered(package, version)
            if version.model_sha256 and sha256_of_files(model) != version.model_sha256:
                raise ArtifactError(
                    f"the files of {version} at {source} are not those that were registered",
                    do="find out who changed them, then restore them or release the model again as a new version",
                )
            answers = list(load(package).records(texts, top_k=5, truncate=False))
        if len(answers) != len(texts):
            problem = f"{version} gives {len(answers)} answers to {len(texts)} texts"
            raise ArtifactError(problem, do="export the model again (`dvc repro`)")

    def record(self, version: models.Registered, decision: decisions.Decision, file_name: str) -> str:
        """Store a decision about `version` beside its evidence, and its outcome as a tag; return its address."""
        with answering(self._tracking_uri, str(version)):
            self._client.log_dict(version.run_id, decision.model_dump(), f"decisions/{file_name}")
        self.registry.tag(version, "clozeline.decision", decision.outcome)
        return f"runs:/{version.run_id}/decisions/{file_name}"

    def measured(self, version: models.Registered, values: Mapping[str, float]) -> None:
        """Log figures measured on this machine, such as latency, to the version's run. No gate reads them."""
        with answering(self._tracking_uri, str(version)):
            for key, value in values.items():
                self._client.log_metric(version.run_id, key, value)

    @contextmanager
    def _run(self, name: str, tags: Mapping[str, str]) -> Iterator[str]:
        experiment = experiment_id(self._client, self._tracking_uri)
        with answering(self._tracking_uri, "runs"):
            run = self._client.create_run(experiment, run_name=name, tags=dict(tags))
        status: Literal["FINISHED", "FAILED"] = "FAILED"
        try:
            yield str(run.info.run_id)
            status = "FINISHED"
        finally:
            self._client.set_terminated(run.info.run_id, status=status)


def example_texts(manifest: Manifest) -> list[str]:
    """Return example texts for this kind of model, in the form that `served_model` takes."""
    return kind_of(manifest.task).model.examples(manifest)


def _save(package: Path, folder: Path) -> None:
    example = (example_texts(read_manifest(package)), {"top_k": 5, "truncate": False})
    with tempfile.TemporaryDirectory() as temporary:
        wheel = write_wheel(Path(temporary))
        mlflow.pyfunc.save_model(
            folder,
            python_model=str(Path(__file__).with_name("served_model.py")),
            artifacts={models.PACKAGE: str(package)},
            input_example=example,
            code_paths=[str(wheel)],
            # The wheel's path is relative to the model's folder: MLflow and pip resolve it there.
            pip_requirements=[f"code/{wheel.name}", f"mlflow-skinny=={version('mlflow-skinny')}"],
        )


def _write_card(package: Path, section: str, folder: Path) -> None:
    """Write the package's model card with the section of the release into `folder`."""
    card = package / CARD
    of_package = card.read_text(encoding="utf-8") if card.is_file() else ""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CARD).write_text(f"{of_package}\n## Release\n\n{section}\n", encoding="utf-8")


def _description(manifest: Manifest) -> str:
    does = kind_of(manifest.task).says or f"labels: {', '.join(manifest.labels)}"
    kind = manifest.quantization.kind if manifest.quantization else "INT8"
    form = f"{kind}, ONNX" if manifest.served == "int8" else "fp32, ONNX: no INT8 scheme passed its checks"
    return f"{manifest.family}, {manifest.task}; {form}; {does}"
