"""Files of a snapshot by the sha256 of their content. Content of the earlier snapshot is linked, not copied."""

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clozeline.artifacts.snapshot.manifest import Earlier, SnapshotFile
from clozeline.storage.fingerprints import sha256_of


class Store:
    """Writes the files of a snapshot into its folder."""

    def __init__(self, folder: Path, earlier: Earlier) -> None:
        self.earlier = earlier
        self._folder = folder
        self._of_size: dict[int, dict[str, SnapshotFile]] = defaultdict(dict)
        """Earlier files by size, then by sha256."""
        for file in earlier.files:
            self._of_size[file.size_bytes][file.sha256] = file

    def keep_copy(self, name: str, source: Path) -> SnapshotFile:
        """Keep a copy of a source file; content that the earlier snapshot has is not written again."""
        known = self._of_size.get(source.stat().st_size, {})
        if known and (same := known.get(sha256_of(source))):
            return self.keep_earlier(same, name)
        with self.incoming() as beside:
            shutil.copyfile(source, beside)
            return self.keep(name, beside)

    def keep(self, name: str, beside: Path) -> SnapshotFile:
        """Move a file that `incoming` named to its place."""
        size_bytes, sha256 = beside.stat().st_size, sha256_of(beside)
        same = self._of_size.get(size_bytes, {}).get(sha256)
        if same:
            return self.keep_earlier(same, name)
        file = SnapshotFile(name=name, sha256=sha256, size_bytes=size_bytes, snapshot=self.earlier.number + 1)
        beside.replace(self._place_of(file))
        return file

    def keep_earlier(self, file: SnapshotFile, name: str) -> SnapshotFile:
        """Keep a file of the earlier snapshot under `name`."""
        place = self._place_of(file)
        if not place.exists():
            link_or_copy(self.earlier.path_of(file), place)
        return file.model_copy(update={"name": name})

    @contextmanager
    def incoming(self) -> Iterator[Path]:
        """Yield the path of a file to write and then to `keep`."""
        beside = self._folder / "incoming"
        try:
            yield beside
        finally:
            beside.unlink(missing_ok=True)

    def _place_of(self, file: SnapshotFile) -> Path:
        place = self._folder / file.object_name
        place.parent.mkdir(parents=True, exist_ok=True)
        return place


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a hard link to the unchanging file `source`, or a copy where the file system has no such links."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
