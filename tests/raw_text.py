"""Snapshots that tests take without DVC."""

from pathlib import Path

from clozeline.corpus.sources.snapshots import take
from clozeline.params.text import SourceParams
from clozeline.records.snapshot import MANIFEST, Earlier, Snapshot
from clozeline.system.workers import worker_processes


def take_snapshot(params: SourceParams, source: Path, folder: Path, before: Path | None = None) -> Snapshot:
    """Take a snapshot into the new folder `folder`, in the order of the one in `before`."""
    folder.mkdir(parents=True)
    files = {path.relative_to(before).as_posix(): path for path in before.rglob("*")} if before else {}
    assert before is None or MANIFEST in files
    with worker_processes(1) as workers:
        return take(params, source, Earlier.among(files), folder, workers)
