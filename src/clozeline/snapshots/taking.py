"""Take a snapshot of a source of any kind."""

import logging
from pathlib import Path

from clozeline.artifacts.snapshot.forgotten import NOTHING, Forgotten
from clozeline.artifacts.snapshot.manifest import Earlier, Snapshot, SnapshotFile
from clozeline.errors import DataError
from clozeline.machine.workers import Workers
from clozeline.params import SourceParams
from clozeline.snapshots.order import ordered
from clozeline.snapshots.store import Store

_LOG = logging.getLogger(__name__)


def take(
    params: SourceParams,
    source: Path,
    earlier: Earlier,
    folder: Path,
    workers: Workers,
    forgotten: Forgotten = NOTHING,
) -> Snapshot:
    """Copy the source without the `forgotten` texts into the empty folder `folder`, after the files that the `earlier`
    snapshot already had.

    Args:
        source: local file or folder, as `params.path` names it.

    Raises:
        DataError: the source is missing, empty, not readable, or not of its kind.
        TransientError: a server did not answer, or the source changed while it was read.
    """
    earlier = _of_same_source(earlier, params)
    store = Store(folder, earlier, forgotten)
    snapshot = _taken(params, source, store, workers)
    snapshot.write(folder)
    new = [file for file in snapshot.files if file.snapshot == earlier.number + 1]
    _LOG.info(
        "snapshot %d of %s: %d files, %d of them new, %s bytes",
        *(snapshot.number, snapshot.place, len(snapshot.files), len(new)),
        f"{sum(file.size_bytes for file in snapshot.files):,}",
    )
    return snapshot


def _of_same_source(earlier: Earlier, params: SourceParams) -> Earlier:
    before = earlier.manifest
    if before is None or (before.kind, before.place) == (params.kind, params.place):
        return earlier
    _LOG.info("the last snapshot is of %s (%s): its order does not continue here", before.place, before.kind)
    return Earlier.none()


def _taken(params: SourceParams, source: Path, store: Store, workers: Workers) -> Snapshot:
    """Keep the source by its kind. Each import is as heavy as its libraries, so only the one that is used happens."""
    revision = None
    if params.kind == "python-docs":
        from clozeline.snapshots.docstrings import keep_docstrings

        files, raw_bytes = keep_docstrings(_existing(source, params), store, workers)
    elif params.kind == "hub":
        from clozeline.snapshots.datasets import keep_dataset

        files, revision = keep_dataset(params, store)
        raw_bytes = 0
    elif params.kind == "sql":
        from clozeline.snapshots.databases import keep_rows

        files = keep_rows(params, store)
        raw_bytes = 0
    else:
        files = ordered(_kept_files(params, source, store), store.earlier.files, store.earlier.number + 1)
        raw_bytes = sum(file.size_bytes for file in files)
    return Snapshot(
        kind=params.kind,
        place=params.place,
        revision=revision,
        raw_bytes=raw_bytes,
        forgotten=store.forgotten.digest,
        files=files,
    )


def _kept_files(params: SourceParams, source: Path, store: Store) -> tuple[SnapshotFile, ...]:
    if params.url is not None:
        from clozeline.snapshots.remote_files import keep_remote_files

        return keep_remote_files(params, store)
    from clozeline.snapshots.local_files import keep_local_files

    return keep_local_files(_existing(source, params), params.pattern, store)


def _existing(source: Path, params: SourceParams) -> Path:
    if not source.exists():
        raise DataError(
            f"{source}: no such file or folder (`source.path: {params.path}`)",
            do="correct `source.path` (a DVC-tracked path may need `dvc pull` first)",
        )
    return source
