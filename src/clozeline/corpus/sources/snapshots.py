"""Take a snapshot of a source of any kind.

Local files, folders, and datasets of the Hugging Face hub (or local folders of the same layout) are kept here, other
kinds in the modules beside it. Files are ordered by the first snapshot that held their content, then by name.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from clozeline.corpus.sources.store import SnapshotStore, keep_records, line_of, text_fields
from clozeline.params.text import SourceParams
from clozeline.records.reading.files import HubSplit, commit_of, hub_records, label_of, matching_files
from clozeline.records.snapshot import MANIFEST, NOTHING, Earlier, Forgotten, Snapshot, SnapshotFile
from clozeline.system import errors, progress
from clozeline.system.workers import Workers

_LOG = logging.getLogger(__name__)

_SPLIT = "train"
_KNOBS = "`source.dataset`, `source.subset` and `source.revision`"


def keep_local_files(path: Path, pattern: str, store: SnapshotStore) -> tuple[SnapshotFile, ...]:
    """Keep the file, or every matching file of the folder.

    Raises:
        DataError: no file matches.
        TransientError: a file changed while it was read.
    """
    files = matching_files(path, pattern)
    kept = (_keep(file, label_of(file, path), store) for file in progress.track(files, "Copying", len(files)))
    return tuple(chain.from_iterable(kept))


def _keep(file: Path, name: str, store: SnapshotStore) -> tuple[SnapshotFile, ...]:
    before = _state_of(file)
    kept = store.keep_copy(name, file)
    if _state_of(file) != before:
        raise errors.TransientError(
            f"{file} changed while it was read: from {before[0]:,} to {file.stat().st_size:,} bytes",
            do="run again when the file is complete; the last snapshot is unchanged",
        )
    return kept


def _state_of(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def keep_dataset(params: SourceParams, store: SnapshotStore) -> tuple[tuple[SnapshotFile, ...], str | None]:
    """Keep text and label of the `train` split; other splits stay unread, because others test on them.

    Returns:
        The shards, and the commit that was read; None for a local folder.

    Raises:
        DataError: the dataset, the configuration, the split or a field does not exist.
        TransientError: the hub did not answer.
    """
    assert params.dataset is not None
    asked = HubSplit(params.dataset, params.subset, _SPLIT, params.revision, _KNOBS)
    commit = commit_of(asked)
    fields = text_fields(params)
    rows = hub_records(replace(asked, revision=commit or params.revision), fields)
    lines = (line_of({field: row[field] for field in fields.values()}) for _, row in rows)
    return keep_records(lines, store), commit


def ordered(found: Iterable[SnapshotFile], earlier: Sequence[SnapshotFile], number: int) -> tuple[SnapshotFile, ...]:
    """Return the files with the snapshot in which each was first seen; new content belongs to snapshot `number`.

    A renamed file keeps its snapshot. Of several copies of one content, a copy takes the earlier file of its own name,
    or else the oldest one that is left.
    """
    free: dict[str, list[SnapshotFile]] = defaultdict(list)
    for file in earlier:
        free[file.sha256].append(file)
    named, unnamed = [], []
    for file in found:
        same = next((one for one in free[file.sha256] if one.name == file.name), None)
        if same is None:
            unnamed.append(file)
            continue
        free[file.sha256].remove(same)
        named.append(file.model_copy(update={"snapshot": same.snapshot, "revision": file.revision or same.revision}))
    for file in sorted(unnamed, key=lambda file: file.name):
        left = free[file.sha256]
        named.append(file.model_copy(update={"snapshot": left.pop(0).snapshot if left else number}))
    return tuple(sorted(named, key=lambda file: (file.snapshot, file.name)))


def take(
    params: SourceParams, source: Path, earlier: Earlier, folder: Path, workers: Workers, forgotten: Forgotten = NOTHING
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
    store = SnapshotStore(folder, earlier, forgotten)
    snapshot = _taken(params, source, store, workers)
    snapshot.write(folder / MANIFEST, exclude_none=True)
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
    return Earlier()


def _taken(params: SourceParams, source: Path, store: SnapshotStore, workers: Workers) -> Snapshot:
    """Keep the source by its kind. Each import is as heavy as its libraries, so only the one that is used happens."""
    revision, raw_bytes = None, 0
    if params.kind == "python-docs":
        from clozeline.corpus.sources.python_docs import keep_docstrings

        files, raw_bytes = keep_docstrings(_existing(source, params), store, workers)
    elif params.kind == "hub":
        files, revision = keep_dataset(params, store)
    elif params.kind == "sql":
        from clozeline.corpus.sources.remote import keep_rows

        files = keep_rows(params, store)
    else:
        if params.url is None:
            files = keep_local_files(_existing(source, params), params.pattern, store)
        else:
            from clozeline.corpus.sources.remote import keep_remote_files

            files = keep_remote_files(params, store)
        files = ordered(files, store.earlier.files, store.earlier.number + 1)
        raw_bytes = sum(file.size_bytes for file in files)
    return Snapshot(
        kind=params.kind,
        place=params.place,
        revision=revision,
        raw_bytes=raw_bytes,
        forgotten=store.forgotten.digest,
        files=files,
    )


def _existing(source: Path, params: SourceParams) -> Path:
    if not source.exists():
        raise errors.DataError(
            f"{source}: no such file or folder (`source.path: {params.path}`)",
            do="correct `source.path` (a DVC-tracked path may need `dvc pull` first)",
        )
    return source
