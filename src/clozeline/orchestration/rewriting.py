"""The last snapshot once more, without the forgotten texts: its order and its numbers stay."""

from pathlib import Path

from clozeline.artifacts.snapshot.forgotten import Forgotten
from clozeline.artifacts.snapshot.manifest import Earlier, Snapshot
from clozeline.snapshots.record_shards import keep_earlier_records
from clozeline.snapshots.store import Store


def rewrite(earlier: Earlier, forgotten: Forgotten, folder: Path) -> Snapshot:
    """Write the snapshot `earlier` without the `forgotten` texts into the empty folder `folder`."""
    assert earlier.manifest
    store = Store(folder, earlier, forgotten)
    if any(file.records is not None for file in earlier.files):
        files = keep_earlier_records(store)
    else:
        files = tuple(store.keep_earlier(file, file.name) for file in earlier.files)
    snapshot = earlier.manifest.model_copy(update={"files": files, "forgotten": forgotten.digest})
    snapshot.write(folder)
    return snapshot
