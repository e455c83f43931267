"""The runs that are behind what lies in the project's folder, found by what they made and not by when they were."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mlflow.entities import Run, ViewType

from clozeline.artifacts.lock import Lock
from clozeline.tracking.addresses import present
from clozeline.tracking.database import answering, experiments, prepare
from clozeline.tracking.forgiving import forgiving

_MOST: Final = 1000  # MLflow's page


@dataclass(frozen=True)
class StageRun:
    """The run in which a stage executed and made what it is locked with; others restored that."""

    run_id: str
    ended: datetime
    seconds: float


@dataclass(frozen=True)
class PastRuns:
    """What MLflow knows of a dvc.lock."""

    run_id: str | None = None
    """Of the newest flow run that ended with it."""
    commit: str | None = None
    is_dirty: bool = False
    """Files that git has differed from the commit."""
    stages: Mapping[str, StageRun] = field(default_factory=dict)
    """By name; none of a stage that executed elsewhere."""


def past_runs(tracking_uri: str, lock_file: Path) -> PastRuns:
    """Find the runs behind `lock_file`.

    Raises:
        ArtifactError: it cannot be read.
        TransientError: MLflow does not answer.
    """
    lock = Lock.read(lock_file)
    md5 = hashlib.md5(lock_file.read_bytes(), usedforsecurity=False).hexdigest()
    with answering(tracking_uri):
        client = prepare(tracking_uri)
        known = [experiment.experiment_id for experiment in experiments(client)]
        if not known:
            return PastRuns()

        def search(filter_string: str, most: int) -> list[Run]:
            order = ["attributes.start_time DESC"]
            return list(client.search_runs(known, filter_string, ViewType.ACTIVE_ONLY, most, order))

        flow_runs = search(f"tags.`dvc.lock_md5` = '{md5}'", 1)
        executed = search("tags.`dvc.outcome` = 'executed'", _MOST)
    by_hash = {run.data.tags.get("dvc.stage_sha256"): run for run in reversed(executed)}
    tags = flow_runs[0].data.tags if flow_runs else {}
    return PastRuns(
        run_id=flow_runs[0].info.run_id if flow_runs else None,
        commit=tags.get("mlflow.source.git.commit"),
        is_dirty=tags.get("git.is_dirty") == "true",
        stages={
            name: _stage_run(by_hash[stage.sha256]) for name, stage in lock.stages.items() if stage.sha256 in by_hash
        },
    )


def attach(tracking_uri: str, run_id: str, file: Path) -> bool:
    """Store `file` with a run that has ended; False if MLflow did not take it, or keeps it where the project was."""

    def store() -> bool:
        client = prepare(tracking_uri)
        address = client.get_run(run_id).info.artifact_uri
        if present(address, tracking_uri) != address:
            return False
        client.log_artifact(run_id, str(file))
        return True

    return forgiving(store) or False


def _stage_run(run: Run) -> StageRun:
    started, ended = run.info.start_time, run.info.end_time or run.info.start_time
    return StageRun(run.info.run_id, datetime.fromtimestamp(ended / 1000, UTC), (ended - started) / 1000)
