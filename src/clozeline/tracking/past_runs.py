"""The runs that made the current outputs of the project, found by the hashes of the outputs, not by time."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mlflow.entities import Run, ViewType
from mlflow.tracking import MlflowClient

from clozeline.artifacts.lock import Lock
from clozeline.errors import ClozelineError
from clozeline.storage.fingerprints import md5_of
from clozeline.tracking.addresses import present
from clozeline.tracking.database import answering, experiments, prepare
from clozeline.tracking.forgiving import forgiving
from clozeline.tracking.stored_files import lock_of

_MOST: Final = 1000  # MLflow's page


@dataclass(frozen=True)
class StageRun:
    """The run in which a stage executed and made the outputs in dvc.lock; other runs only restored them."""

    run_id: str
    ended: datetime
    seconds: float


@dataclass(frozen=True)
class EarlierRun:
    """A finished flow run with another dvc.lock."""

    started: datetime
    commit: str | None
    figures: Mapping[str, float]
    """Numbers of all metric files: `evaluate.top1` is `top1` of metrics/evaluate.json."""
    lock: Lock | None
    """Its dvc.lock; None if MLflow no longer has a copy."""


@dataclass(frozen=True)
class PastRuns:
    """The runs that MLflow knows for a dvc.lock."""

    run_id: str | None = None
    """Id of the newest flow run that ended with this dvc.lock."""
    commit: str | None = None
    is_dirty: bool = False
    """Whether tracked files differed from the commit."""
    stages: Mapping[str, StageRun] = field(default_factory=dict)
    """Runs by name of the stage; stages that executed elsewhere are missing."""
    earlier: EarlierRun | None = None
    """Newest finished flow run before this one with another dvc.lock; None if MLflow has none, as in a fresh clone."""


def past_runs(tracking_uri: str, lock_file: Path) -> PastRuns:
    """Find the runs behind `lock_file`.

    Raises:
        ArtifactError: `lock_file` cannot be read.
        TransientError: MLflow does not answer.
    """
    lock = Lock.read(lock_file)
    md5 = md5_of(lock_file)
    with answering(tracking_uri):
        client = prepare(tracking_uri)
        known = [experiment.experiment_id for experiment in experiments(client)]
        if not known:
            return PastRuns()

        def search(filter_string: str, most: int) -> list[Run]:
            order = ["attributes.start_time DESC"]
            return list(client.search_runs(known, filter_string, ViewType.ACTIVE_ONLY, most, order))

        flow_runs = search(f"tags.`dvc.lock_md5` = '{md5}'", 1)
        before = f" AND attributes.start_time < {flow_runs[0].info.start_time}" if flow_runs else ""
        others = search(f"tags.`dvc.lock_md5` != '{md5}' AND attributes.status = 'FINISHED'{before}", 1)
        by_hash = executed_by_hash(client, known)
    tags = flow_runs[0].data.tags if flow_runs else {}
    return PastRuns(
        run_id=flow_runs[0].info.run_id if flow_runs else None,
        commit=tags.get("mlflow.source.git.commit"),
        is_dirty=tags.get("git.is_dirty") == "true",
        stages={
            name: _stage_run(by_hash[stage.sha256]) for name, stage in lock.stages.items() if stage.sha256 in by_hash
        },
        earlier=earlier_run(others[0], tracking_uri) if others else None,
    )


def executed_by_hash(client: MlflowClient, experiment_ids: list[str]) -> dict[str | None, Run]:
    """Return the newest run of each executed stage by `LockedStage.sha256`."""
    newest_first = ["attributes.start_time DESC"]
    searched = (experiment_ids, "tags.`dvc.outcome` = 'executed'", ViewType.ACTIVE_ONLY, _MOST, newest_first)
    return {run.data.tags.get("dvc.stage_sha256"): run for run in reversed(client.search_runs(*searched))}


def attach(tracking_uri: str, run_id: str, file: Path) -> bool:
    """Store `file` with an ended run; False if MLflow refused, or if the project moved since that run."""

    def store() -> bool:
        client = prepare(tracking_uri)
        address = client.get_run(run_id).info.artifact_uri
        if present(address, tracking_uri) != address:
            return False
        client.log_artifact(run_id, str(file))
        return True

    return forgiving(store) or False


def earlier_run(run: Run, tracking_uri: str) -> EarlierRun:
    """Return what MLflow knows of a flow run, with its dvc.lock."""
    lock: Lock | None = None
    with suppress(ClozelineError):  # the artifact may be deleted; figures are still comparable
        lock = lock_of(run, tracking_uri)
    return EarlierRun(
        started=datetime.fromtimestamp(run.info.start_time / 1000, UTC),
        commit=run.data.tags.get("mlflow.source.git.commit"),
        figures=run.data.metrics,
        lock=lock,
    )


def _stage_run(run: Run) -> StageRun:
    started, ended = run.info.start_time, run.info.end_time or run.info.start_time
    return StageRun(run.info.run_id, datetime.fromtimestamp(ended / 1000, UTC), (ended - started) / 1000)
