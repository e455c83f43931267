"""Past runs and the files that MLflow stores for them: a run's dvc.lock, their size, search and removal.

Flow runs are those that made the current outputs of the project, which are found by the hashes of the outputs, not by
time, and those that a person names, to compare them. The last nights are the flow runs whose data and files are kept;
the stored files of older runs can be removed.
"""

import json
import logging
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Self
from urllib.parse import quote

from mlflow.artifacts import download_artifacts
from mlflow.entities import Run, ViewType
from mlflow.tracking import MlflowClient

from clozeline.records.record import Lock
from clozeline.system import errors, files, progress
from clozeline.system.files import Removal, SweptStore
from clozeline.tracking import addresses, delivery
from clozeline.tracking.mlflow import answering, prepare, remove_stored_files, runs_of, stored_files

_LOCK = "dvc.lock"

_LOCK_MD5 = "dvc.lock_md5"
# Tag of a run whose stored files are being removed, and then of one whose files were removed.
_FILES = "clozeline.files"
_REMOVING = "removing"
_REMOVED = "removed"
# Suffixes of files that may quote a text.
_QUOTING = {".csv", ".html", ".json", ".jsonl", ".log", ".md", ".parquet", ".txt"}

_LOG = logging.getLogger(__name__)
_MOST_EXECUTED = 1000
# Number of runs whose columns a terminal has room for.
MOST = 4
# Address at which `clozeline ui` shows the project's own database.
_OWN_PAGES = "http://127.0.0.1:5000"
_PAGE = 100
_SHOWN = 10
_IS_ID = re.compile(r"[0-9a-f]{4,32}")


def address_of(run: Run, tracking_uri: str) -> str:
    """Return where the files of a run are now."""
    return addresses.present(run.info.artifact_uri, tracking_uri)


def files_of(run: Run, tracking_uri: str) -> dict[str, int]:
    """Return the size in bytes of each file of a run. Raises the errors of `answering`."""
    with answering(tracking_uri):
        return dict(stored_files(address_of(run, tracking_uri), tracking_uri))


def remove_files_of(run: Run, tracking_uri: str, path: str | None = None) -> None:
    """Remove the file `path` of a run; without it all. Raises the errors of `answering`."""
    with answering(tracking_uri):
        remove_stored_files(address_of(run, tracking_uri), tracking_uri, path)


@contextmanager
def _copy_of(run: Run, path: str, tracking_uri: str) -> Iterator[Path]:
    """Yield a temporary copy of the file `path` of a run. Raises the errors of `answering`."""
    address = f"{address_of(run, tracking_uri)}/{path}"
    with tempfile.TemporaryDirectory() as folder:
        with answering(tracking_uri):
            copy = download_artifacts(artifact_uri=address, dst_path=folder, tracking_uri=tracking_uri)
        yield Path(copy)


def lock_of(run: Run, tracking_uri: str) -> Lock | None:
    """Return the dvc.lock stored with a flow run; None if it is gone or damaged. Raises the errors of `answering`."""
    if _LOCK not in files_of(run, tracking_uri):
        return None
    with _copy_of(run, _LOCK, tracking_uri) as copy, suppress(errors.ArtifactError):
        return Lock.read(copy)
    return None


@dataclass(frozen=True)
class Nights:
    """What MLflow knows of all workspaces, as far as it decides what is kept."""

    locks: tuple[Lock, ...]  # the dvc.lock of each kept flow run, of every workspace
    oldest_kept: datetime | None  # start of the oldest kept run of this workspace; None if all its runs are kept
    running_elsewhere: tuple[str, ...]  # names of unfinished runs of other workspaces
    runs: tuple[Run, ...]
    tracking_uri: str
    workspace: str

    @classmethod
    def read(cls, tracking_uri: str, workspace: str, num_kept: int) -> Self:
        """Read the flow runs back to the `num_kept`-th newest night of each workspace.

        A night is a finished run with another dvc.lock than the nights after it. Unfinished and failed runs in between
        are kept, too.

        Raises:
            ArtifactError: the dvc.lock of a kept run is gone or damaged.
            TransientError: MLflow does not answer.
        """
        with answering(tracking_uri):
            runs = tuple(runs_of(prepare(tracking_uri)))
            flow_runs = defaultdict(list)
            for run in runs:
                if _LOCK_MD5 in run.data.tags:
                    flow_runs[run.data.tags.get(delivery.WORKSPACE)].append(run)
            kept = {owner: list(_last_nights(of_one, num_kept)) for owner, of_one in flow_runs.items()}
        locks = tuple(_locks((run for of_one in kept.values() for run in of_one), tracking_uri))
        own = kept.get(workspace, [])
        return cls(
            locks=locks,
            oldest_kept=_time(own[-1].info.start_time) if len(_nights(own)) == num_kept else None,
            running_elsewhere=tuple(
                run.info.run_name
                for run in runs
                if run.info.status == "RUNNING" and run.data.tags.get(delivery.WORKSPACE) not in (None, workspace)
            ),
            runs=runs,
            tracking_uri=tracking_uri,
            workspace=workspace,
        )

    @property
    def has_own(self) -> bool:
        """Whether MLflow knows any run of this workspace."""
        return any(run.data.tags.get(delivery.WORKSPACE) == self.workspace for run in self.runs)

    def files(self, locks: Iterable[Lock], before: datetime) -> SweptStore:
        """Return the stored files of this workspace's flow and stage runs.

        Those of runs that ended before `before` can be removed, except of stage runs that made what `locks` name. Runs
        and figures stay.
        """
        made = {stage.sha256 for lock in locks for stage in lock.stages.values()}
        own = [run for run in self.runs if self._is_ours(run) and run.data.tags.get(_FILES) != _REMOVED]
        ended = [run for run in own if _time(run.info.end_time or run.info.start_time) < before]
        old = [run for run in ended if run.data.tags.get("dvc.stage_sha256") not in made]
        sizes = [sum(files_of(run, self.tracking_uri).values()) for run in old]
        removals = tuple(Removal(size, partial(self._remove, run)) for size, run in zip(sizes, old, strict=True))
        return SweptStore("MLflow: files of runs", len(own) - len(old), removals)

    def _is_ours(self, run: Run) -> bool:
        """Whether the flow or stage run is of this workspace, and its files are not in another copy of the project."""
        tags, database = run.data.tags, addresses.database_of(self.tracking_uri)
        if delivery.OUTBOX_RUN not in tags or tags.get(delivery.WORKSPACE) != self.workspace:
            return False
        path = addresses.local_path(address_of(run, self.tracking_uri))
        return path is None or database is None or path.is_relative_to(addresses.files_beside(database))

    def _remove(self, run: Run) -> None:
        """Remove the files of a run. From the first tag on its dvc.lock keeps nothing."""
        self._mark(run, _REMOVING)
        remove_files_of(run, self.tracking_uri)
        self._mark(run, _REMOVED)

    def _mark(self, run: Run, state: str) -> None:
        with answering(self.tracking_uri):
            prepare(self.tracking_uri).set_tag(run.info.run_id, _FILES, state)


def _last_nights(newest_first: Iterable[Run], num_kept: int) -> Iterator[Run]:
    """Yield the runs back to the `num_kept`-th newest night."""
    nights: set[str] = set()
    for run in newest_first:
        yield run
        nights |= _nights([run])
        if len(nights) == num_kept:
            return


def _nights(runs: Iterable[Run]) -> set[str]:
    return {run.data.tags[_LOCK_MD5] for run in runs if run.info.status == "FINISHED"}


def _locks(runs: Iterable[Run], tracking_uri: str) -> Iterator[Lock]:
    by_md5 = {run.data.tags[_LOCK_MD5]: run for run in runs if _FILES not in run.data.tags}
    for run in by_md5.values():
        lock = lock_of(run, tracking_uri)
        if lock is None:
            raise errors.ArtifactError(
                f"the dvc.lock of a kept night is gone or damaged: run {run.info.run_name} at {run.info.artifact_uri}",
                do="restore it; or delete that run in MLflow (`clozeline ui`), and its data can be removed, too",
            )
        yield lock


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def search_files(
    tracking_uri: str, quotes: Callable[[Path], bool], of_versions: Collection[str]
) -> tuple[SweptStore, tuple[str, ...]]:
    """Search the files of all runs of this project, also of deleted ones, for those that quote a text.

    `of_versions`: ids of the runs of versions, whose files are part of the version.

    Returns:
        The files that can be removed, and the names of those that are kept.

    Raises:
        ArtifactError: the store of files refuses the key.
        TransientError: MLflow or the store of its files does not answer.
    """
    with answering(tracking_uri):
        runs = list(runs_of(prepare(tracking_uri), view=ViewType.ALL))
    num_files, removals, kept = 0, [], []
    for run in progress.track(runs, "Searching files of runs", len(runs)):
        for path, size in files_of(run, tracking_uri).items():
            if PurePosixPath(path).suffix not in _QUOTING:
                continue
            num_files += 1
            with _copy_of(run, path, tracking_uri) as copy:
                is_quoting = quotes(copy)
            if is_quoting and run.info.run_id in of_versions:
                kept.append(f"{run.info.run_name}: {path}")
            elif is_quoting:
                removals.append(Removal(size, partial(remove_files_of, run, tracking_uri, path)))
    return SweptStore("MLflow: files of runs", num_files - len(removals), tuple(removals)), tuple(kept)


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
    figures: Mapping[str, float]  # numbers of all metric files: `evaluate.top1` is `top1` of metrics/evaluate.json
    lock: Lock | None  # its dvc.lock; None if MLflow no longer has a copy
    # Id of the run of its pre-training, which has the curves; None if that was executed elsewhere.
    training_id: str | None = None


@dataclass(frozen=True)
class PastRuns:
    """The runs that MLflow knows for a dvc.lock."""

    run_id: str | None = None  # id of the newest flow run that ended with this dvc.lock
    commit: str | None = None
    is_dirty: bool = False  # whether tracked files differed from the commit
    # Runs by name of the stage; stages that executed elsewhere are missing.
    stages: Mapping[str, StageRun] = field(default_factory=dict)
    # Newest finished flow run before this one with another dvc.lock; None if MLflow has none, as in a fresh clone.
    earlier: PastRun | None = None


def past_runs(tracking_uri: str, lock_file: Path) -> PastRuns:
    """Find the runs behind `lock_file`.

    Raises:
        ArtifactError: `lock_file` cannot be read.
        TransientError: MLflow does not answer.
    """
    lock = Lock.read(lock_file)
    md5 = files.md5_of(lock_file)
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
        if addresses.present(address, tracking_uri) != address:
            return False
        client.log_artifact(run_id, str(file))
    except Exception as error:  # noqa: BLE001  # a store raises the errors of its package: boto3's are no `OSError`
        _LOG.warning("MLflow did not store %s: %s", file, " ".join(str(error).split())[:300])
        return False
    return True


def _past_run(run: Run, tracking_uri: str, executed: Mapping[str | None, Run]) -> PastRun:
    """Return what MLflow knows of a flow run; `executed`: the runs of stages by `LockedStage.sha256`."""
    lock: Lock | None = None
    with suppress(errors.ClozelineError):  # the artifact may be deleted; figures are still comparable
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
            raise errors.ArtifactError(
                f"there are no two runs with different results to compare; MLflow knows {newest or 'none'}",
                do="change params.yaml, and run `clozeline run`",
            )
        if not 2 <= len(ids) <= MOST:
            raise errors.ArtifactError(
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
        raise errors.ArtifactError(
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
    without_user = re.sub(r"(?<=://)[^/@]*@", "", tracking_uri.rstrip("/"))
    pages = without_user if tracking_uri.startswith("http") else _OWN_PAGES
    runs, known = (quote(json.dumps(list(dict.fromkeys(ids)))) for ids in (run_ids, experiment_ids))
    return f"{pages}/#/compare-runs?runs={runs}&experiments={known}"


def _called(run: Run) -> str:
    return f"{run.info.run_name} ({run.info.run_id[:8]})"
