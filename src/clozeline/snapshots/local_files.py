"""Snapshot of a local file or folder."""

from itertools import chain
from pathlib import Path

from clozeline.artifacts.snapshot.manifest import SnapshotFile
from clozeline.errors import TransientError
from clozeline.progress import track
from clozeline.snapshots.store import Store
from clozeline.text.matching import label_of, matching_files


def keep_local_files(path: Path, pattern: str, store: Store) -> tuple[SnapshotFile, ...]:
    """Keep the file, or every matching file of the folder.

    Raises:
        DataError: no file matches.
        TransientError: a file changed while it was read.
    """
    files = matching_files(path, pattern)
    kept = (_keep(file, label_of(file, path), store) for file in track(files, "Copying", len(files)))
    return tuple(chain.from_iterable(kept))


def _keep(file: Path, name: str, store: Store) -> tuple[SnapshotFile, ...]:
    before = _state_of(file)
    kept = store.keep_copy(name, file)
    if _state_of(file) != before:
        raise TransientError(
            f"{file} changed while it was read: from {before[0]:,} to {file.stat().st_size:,} bytes",
            do="run again when the file is complete; the last snapshot is unchanged",
        )
    return kept


def _state_of(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns
