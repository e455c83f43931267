"""Order of the files of a snapshot: by the first snapshot that held their content, then by name."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from clozeline.artifacts.snapshot.manifest import SnapshotFile


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
