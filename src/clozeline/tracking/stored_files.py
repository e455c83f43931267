"""The files that MLflow stores for a run: its dvc.lock, their size, search and removal, and errors of their store.

The last nights are the flow runs whose data and files are kept; the stored files of older runs can be removed.
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, Self

from mlflow.artifacts import download_artifacts
from mlflow.entities import Run, ViewType

from clozeline.records.record import Lock
from clozeline.system.errors import ArtifactError
from clozeline.system.files import Removal, SweptStore
from clozeline.system.progress import track
from clozeline.tracking.addresses import database_of, files_beside, local_path, present
from clozeline.tracking.delivery import OUTBOX_RUN, WORKSPACE
from clozeline.tracking.mlflow import answering, prepare, remove_stored_files, runs_of, stored_files

_LOCK: Final = "dvc.lock"

_LOCK_MD5: Final = "dvc.lock_md5"
_FILES: Final = "clozeline.files"
"""Tag of a run whose stored files are being removed, and then of one whose files were removed."""
_REMOVING: Final = "removing"
_REMOVED: Final = "removed"
_QUOTING: Final = {".csv", ".html", ".json", ".jsonl", ".log", ".md", ".parquet", ".txt"}
"""Suffixes of files that may quote a text."""


def address_of(run: Run, tracking_uri: str) -> str:
    """Return where the files of a run are now."""
    return present(run.info.artifact_uri, tracking_uri)


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
    with _copy_of(run, _LOCK, tracking_uri) as copy, suppress(ArtifactError):
        return Lock.read(copy)
    return None


@dataclass(frozen=True)
class Nights:
    """What MLflow knows of all workspaces, as far as it decides what is kept."""

    locks: tuple[Lock, ...]
    """The dvc.lock of each kept flow run, of every workspace."""
    oldest_kept: datetime | None
    """Start of the oldest kept run of this workspace; None if all its runs are kept."""
    running_elsewhere: tuple[str, ...]
    """Names of unfinished runs of other workspaces."""
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
                    flow_runs[run.data.tags.get(WORKSPACE)].append(run)
            kept = {owner: list(_last_nights(of_one, num_kept)) for owner, of_one in flow_runs.items()}
        locks = tuple(_locks((run for of_one in kept.values() for run in of_one), tracking_uri))
        own = kept.get(workspace, [])
        return cls(
            locks=locks,
            oldest_kept=_time(own[-1].info.start_time) if len(_nights(own)) == num_kept else None,
            running_elsewhere=tuple(
                run.info.run_name
                for run in runs
                if run.info.status == "RUNNING" and run.data.tags.get(WORKSPACE) not in (None, workspace)
            ),
            runs=runs,
            tracking_uri=tracking_uri,
            workspace=workspace,
        )

    @property
    def has_own(self) -> bool:
        """Whether MLflow knows any run of this workspace."""
        return any(run.data.tags.get(WORKSPACE) == self.workspace for run in self.runs)

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
        tags, database = run.data.tags, database_of(self.tracking_uri)
        if OUTBOX_RUN not in tags or tags.get(WORKSPACE) != self.workspace:
            return False
        path = local_path(address_of(run, self.tracking_uri))
        return path is None or database is None or path.is_relative_to(files_beside(database))

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
            raise ArtifactError(
                f"the dvc.lock of a night that is kept is gone or damaged, so the data of that night are not known: it"
                f" was stored with run {run.info.run_name} at {run.info.artifact_uri}",
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
    for run in track(runs, "Searching files of runs", len(runs)):
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
