"""Past flow runs: those that made the current outputs of the project, and those that a person names, to compare them.

The runs of the outputs are found by the hashes of the outputs, not by time. Named runs come with their figures, their
dvc.lock, and the address of MLflow's own page that compares them.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import quote

from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from clozeline.records.record import Lock
from clozeline.system.content import md5_of
from clozeline.system.errors import ArtifactError, ClozelineError
from clozeline.tracking.addresses import present
from clozeline.tracking.mlflow import answering, prepare, runs_of
from clozeline.tracking.stored_files import lock_of

_LOG = logging.getLogger(__name__)
_MOST_EXECUTED: Final = 1000
MOST: Final = 4
"""Number of runs whose columns a terminal has room for."""
_OWN_PAGES: Final = "http://127.0.0.1:5000"
"""Address at which `clozeline ui` shows the project's own database."""
_PAGE: Final = 100
_SHOWN: Final = 10
_IS_ID: Final = re.compile(r"[0-9a-f]{4,32}")


@dataclass(frozen=True)
class StageRun:
    """The run in which a stage executed and made the outputs in dvc.lock; other runs only restored them."""

    run_id: str
    ended: datetime
    seconds: float


@dataclass(frozen=True)
class PastRun:
    """A flow run that ended with a dvc.lock."""

    run_id: str
    name: str
    experiment_id: str
    started: datetime
    commit: str | None
    figures: Mapping[str, float]
    """Numbers of all metric files: `evaluate.top1` is `top1` of metrics/evaluate.json."""
    lock: Lock | None
    """Its dvc.lock; None if MLflow no longer has a copy."""
    training_id: str | None = None
    """Id of the run of its pre-training, which has the curves; None if that was executed elsewhere."""


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
    earlier: PastRun | None = None
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
        flow_run = next(runs_of(client, f"tags.`dvc.lock_md5` = '{md5}'", page=1), None)
        before = f" AND attributes.start_time < {flow_run.info.start_time}" if flow_run else ""
        condition = f"tags.`dvc.lock_md5` != '{md5}' AND attributes.status = 'FINISHED'{before}"
        other = next(runs_of(client, condition, page=1), None)
        executed = executed_by_hash(client)
    tags = flow_run.data.tags if flow_run else {}
    return PastRuns(
        run_id=flow_run.info.run_id if flow_run else None,
        commit=tags.get("mlflow.source.git.commit"),
        is_dirty=tags.get("git.is_dirty") == "true",
        stages={
            name: _stage_run(executed[stage.sha256]) for name, stage in lock.stages.items() if stage.sha256 in executed
        },
        earlier=_past_run(other, tracking_uri, executed) if other else None,
    )


def executed_by_hash(client: MlflowClient) -> dict[str | None, Run]:
    """Return the newest run of each executed stage by `LockedStage.sha256`, of the newest 1,000."""
    newest = list(islice(runs_of(client, "tags.`dvc.outcome` = 'executed'"), _MOST_EXECUTED))
    return {run.data.tags.get("dvc.stage_sha256"): run for run in reversed(newest)}


def attach(tracking_uri: str, run_id: str, file: Path) -> bool:
    """Store `file` with an ended run; False if MLflow refused, or if the project moved since that run."""

    try:
        client = prepare(tracking_uri)
        address = client.get_run(run_id).info.artifact_uri
        if present(address, tracking_uri) != address:
            return False
        client.log_artifact(run_id, str(file))
    except Exception as error:  # noqa: BLE001  # a store raises the errors of its package: boto3's are no `OSError`
        _LOG.warning("MLflow did not store %s: %s", file, " ".join(str(error).split())[:300])
        return False
    return True


def _past_run(run: Run, tracking_uri: str, executed: Mapping[str | None, Run]) -> PastRun:
    """Return what MLflow knows of a flow run; `executed`: the runs of stages by `LockedStage.sha256`."""
    lock: Lock | None = None
    with suppress(ClozelineError):  # the artifact may be deleted; figures are still comparable
        lock = lock_of(run, tracking_uri)
    stage = lock.stages.get("pretrain") if lock else None
    training = executed.get(stage.sha256) if stage else None
    return PastRun(
        run_id=run.info.run_id,
        name=run.info.run_name,
        experiment_id=str(run.info.experiment_id),
        started=datetime.fromtimestamp(run.info.start_time / 1000, UTC),
        commit=run.data.tags.get("mlflow.source.git.commit"),
        figures=run.data.metrics,
        lock=lock,
        training_id=training.info.run_id if training else None,
    )


def _stage_run(run: Run) -> StageRun:
    started, ended = run.info.start_time, run.info.end_time or run.info.start_time
    return StageRun(run.info.run_id, datetime.fromtimestamp(ended / 1000, UTC), (ended - started) / 1000)


def compared_runs(tracking_uri: str, wanted: Sequence[str]) -> list[PastRun]:
    """Find flow runs by their name, or by the beginning of their id; without any, the last two with other results.

    Raises:
        ArtifactError: a run is unknown, or a name has several; too few or too many are wanted.
        TransientError: MLflow does not answer.
    """
    with answering(tracking_uri):
        client = prepare(tracking_uri)
        found = [_named(client, text) for text in wanted] if wanted else _last_two(client)
        ids = list(dict.fromkeys(run.info.run_id for run in found))
        newest = ", ".join(map(_called, _newest(client)))
        if not wanted and len(ids) < 2:
            raise ArtifactError(
                f"there are no two runs with different results to compare; MLflow knows {newest or 'none'}",
                do="change params.yaml, and run `clozeline run`",
            )
        if not 2 <= len(ids) <= MOST:
            raise ArtifactError(
                f"this number of runs cannot be compared: {len(ids)} different of {', '.join(wanted)}",
                do=f"name 2 to {MOST} of: {newest}",
            )
        executed = executed_by_hash(client)
    return [_past_run(run, tracking_uri, executed) for run in found]


def _named(client: MlflowClient, text: str) -> Run:
    quoted = text.replace("'", "")  # MLflow's filters cannot escape it, and no run of ours has it
    found = list(_search(client, f" AND attributes.run_name = '{quoted}'"))
    if not found and _IS_ID.fullmatch(text):
        found = [run for run in _search(client) if run.info.run_id.startswith(text)]
    if len(found) != 1:
        others = ", ".join(map(_called, found or _newest(client)))
        raise ArtifactError(
            f"{len(found)} runs have this name or id: {text}"
            if found
            else f"MLflow has no run with this name or id: {text}",
            do=f"name one of: {others}" if others else "run `clozeline run` first",
        )
    return found[0]


def _last_two(client: MlflowClient) -> list[Run]:
    """Return the newest two finished runs with different dvc.locks, the older one first."""
    by_lock: dict[str, Run] = {}
    for run in _search(client, " AND attributes.status = 'FINISHED'"):
        by_lock.setdefault(run.data.tags["dvc.lock_md5"], run)
        if len(by_lock) == 2:
            break
    return list(reversed(by_lock.values()))


def _newest(client: MlflowClient) -> list[Run]:
    return list(islice(_search(client), _SHOWN))


def _search(client: MlflowClient, condition: str = "") -> Iterator[Run]:
    """Yield the flow runs that have a dvc.lock, the newest first."""
    return runs_of(client, f"tags.`dvc.lock_md5` != ''{condition}", page=_PAGE)


def comparison_address(tracking_uri: str, run_ids: Sequence[str], experiment_ids: Sequence[str]) -> str:
    """Return the address of MLflow's own page that compares these runs; of a local database, in `clozeline ui`."""
    pages = tracking_uri.rstrip("/") if tracking_uri.startswith("http") else _OWN_PAGES
    runs, known = (quote(json.dumps(list(dict.fromkeys(ids)))) for ids in (run_ids, experiment_ids))
    return f"{pages}/#/compare-runs?runs={runs}&experiments={known}"


def _called(run: Run) -> str:
    return f"{run.info.run_name} ({run.info.run_id[:8]})"
