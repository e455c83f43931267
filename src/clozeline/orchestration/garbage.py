"""Garbage collection over every store of a project: what is still reachable is kept, the rest is removed."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from clozeline.orchestration import checks, stage_process
from clozeline.records.record import Lock
from clozeline.registry.decisions import versions_in_use
from clozeline.registry.models import Registered, model_name
from clozeline.registry.publishing import LOCK, Publisher
from clozeline.registry.start_lock import START_LOCK, StartLock
from clozeline.registry.versions import copy_name
from clozeline.system import errors, files
from clozeline.system.workspace import Workspace, run_lock, tracking_uri
from clozeline.tracking import addresses, past_runs, runs
from clozeline.versions.objects import Stored
from clozeline.versions.project import own_lock


def sweep_project(
    workspace: Workspace, num_nights: int, min_age: timedelta, *, shared: bool, is_dry: bool
) -> tuple[files.SweptStore, ...]:
    """Remove data that is no longer needed, unless `is_dry`. Return the kept and the removable data of each store.

    Every store is read before the first removal. A sweep may be killed; the next one continues it. Kept are the data of
    named versions, of the newest nights of each workspace, of the working tree, branches and tags; and anything that is
    younger than `min_age`, because a run may be about to use it. `shared`: also sweep the remote, and a cache outside
    the project.

    Raises:
        ParamsError: DVC cannot read a branch or tag.
        ArtifactError: MLflow has no run of this workspace; or what decides what is kept is missing or damaged.
        TransientError: MLflow or the remote does not answer, or a run is active.
    """
    address = tracking_uri(workspace)
    database = addresses.database_of(address)
    if database is not None and not database.exists():
        raise _nothing_known(address)
    before = datetime.now(UTC) - min_age
    with ExitStack() as stack:
        if not is_dry:
            stack.enter_context(held_to_remove(workspace))
        publisher = Publisher(address)
        versions = versions_in_use(address)
        if start := StartLock.of_yaml(workspace.root / START_LOCK):  # its version may have no alias any more
            versions.append(publisher.registry.version(start.model, start.version))
        nights = past_runs.Nights.read(address, checks.identity_of(workspace), num_nights)
        if not nights.has_own:
            raise _nothing_known(address)
        if shared and nights.running_elsewhere:
            raise errors.TransientError(
                f"{', '.join(nights.running_elsewhere)} of another workspace is active, and may need shared data",
                do="wait until it ends (if it was killed, delete it in `clozeline ui`), or leave `--shared` out",
            )
        locks = (*nights.locks, *(lock_of(version, publisher) for version in versions), own_lock(workspace.root))
        in_dvc = stack.enter_context(Stored.open(workspace.root, shared=shared)).without_old(locks, before)
        # Without `num_nights` nights no run is too old.
        ended = min(before, nights.oldest_kept) if nights.oldest_kept else datetime.min.replace(tzinfo=UTC)
        stores = (*in_dvc, nights.files(locks, ended), *_in_work(workspace, versions, before, ended))
        if not is_dry:
            files.sweep(stores)
    return stores


@contextmanager
def held_to_remove(workspace: Workspace) -> Iterator[None]:
    """Let no run start, after MLflow got the records of earlier ones.

    Raises:
        ArtifactError: MLflow refuses the caller.
        TransientError: MLflow or the store of its files does not answer, or a run is active.
    """
    with run_lock(workspace.lock_file):
        address = tracking_uri(workspace)
        if reason := runs.deliver_waiting(workspace.outbox, address):
            raise errors.TransientError(
                f"MLflow at {address} lacks records of {workspace.outbox}, which decide what is removed: {reason}",
                do="start it and the store of its files, or try again later; nothing was removed",
            )
        yield


def lock_of(version: Registered, publisher: Publisher) -> Lock:
    """Return the dvc.lock that is stored with a version.

    Raises:
        ArtifactError: it is gone or damaged.
    """
    with publisher.evidence(version) as evidence:
        return Lock.read(evidence / LOCK)


def _nothing_known(address: str) -> errors.ArtifactError:
    return errors.ArtifactError(
        f"MLflow at {address} knows no run of this workspace, so it cannot say what is still needed",
        do="correct MLFLOW_TRACKING_URI, or run the pipeline here first (`clozeline run`); nothing was removed",
    )


def _in_work(
    workspace: Workspace, versions: Iterable[Registered], before: datetime, ended: datetime
) -> tuple[files.SweptStore, ...]:
    """Return logs and checkpoints of runs that ended before `ended`, indexes and copies of models that are gone, and
    trainings and sweeps that ended before `ended`, with the text and tokens that no other training reads.
    """
    saved = [step for stage in ("pretrain", "finetune") for step in (workspace.work / stage).rglob("step-*")]
    searched = {model_name(folder.name) for folder in workspace.root.glob("dist/*")} | {one.name for one in versions}
    copies = {copy_name(version) for version in versions}
    kept = set(workspace.experiments.glob("[!.]*"))
    texts = {folder for folder in kept if folder.name.startswith(("corpus-", "tokens-"))}
    old = {folder for folder in kept if _written(folder) < ended}
    links = [link for folder in kept - old for part in ("data", "models") for link in (folder / part).glob("*")]
    read = {parent for link in links if link.is_symlink() for parent in link.resolve().parents}

    def is_old(folder: Path) -> bool:
        return _written(folder) < ended

    def is_unnamed(index: Path) -> bool:
        return not {index.name, model_name(index.name)} & searched and _written(index) < before

    def is_lost(folder: Path) -> bool:
        return folder.name not in copies and _written(folder) < before

    def is_unread(text: Path) -> bool:
        return text in old and text.resolve() not in read

    return (
        files.SweptStore.of_paths("work: logs", stage_process.run_folders(workspace.logs), is_old),
        files.SweptStore.of_paths("work: checkpoints", {step.parent for step in saved}, is_old),
        files.SweptStore.of_paths("work: search indexes", workspace.work.glob("search/[!.]*"), is_unnamed),
        files.SweptStore.of_paths("work: fetched models", workspace.work.glob("registry/[!.]*"), is_lost),
        files.SweptStore.of_paths("work: experiments", kept - texts, old.__contains__),
        files.SweptStore.of_paths("work: text of experiments", texts, is_unread),
    )


def _written(folder: Path) -> datetime:
    """Return when the newest file in the folder was written."""
    newest = max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    return datetime.fromtimestamp(newest, UTC)
