"""Files of a snapshot by the sha256 of their content. Content of the earlier snapshot is linked, not copied, and
forgotten texts are left out.
"""

import hashlib
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from secrets import token_hex
from typing import BinaryIO, Final

from clozeline.artifacts.snapshot.forgotten import NOTHING, Forgotten
from clozeline.artifacts.snapshot.manifest import Earlier, SnapshotFile
from clozeline.snapshots.redaction import redact
from clozeline.storage.fingerprints import sha256_of
from clozeline.storage.links import link_or_copy

_JSON_LINES: Final = (".jsonl", ".ndjson")
"""Suffixes of files whose every line is a record of its own, so that they can be cut between lines."""
_BLOCK_BYTES: Final = 1 << 20


class Store:
    """Writes the files of a snapshot into its folder."""

    def __init__(self, folder: Path, earlier: Earlier, forgotten: Forgotten = NOTHING) -> None:
        self.earlier = earlier
        self.forgotten = forgotten
        self._folder = folder
        self._is_earlier_clean = earlier.manifest is None or earlier.manifest.forgotten == forgotten.digest
        self._of_size: dict[int, dict[str, SnapshotFile]] = defaultdict(dict)
        """Earlier files by size, then by sha256."""
        self._of_name: dict[str, list[SnapshotFile]] = defaultdict(list)
        """Parts of each earlier file, in order."""
        for file in earlier.files:
            self._of_size[file.size_bytes][file.sha256] = file
            self._of_name[file.name].append(file)
        self._in_parts: dict[int, list[Sequence[SnapshotFile]]] = defaultdict(list)
        """Earlier files of several parts, by their size."""
        for parts in self._of_name.values():
            if len(parts) > 1:
                self._in_parts[_size_of(parts)].append(parts)

    def keep_copy(self, name: str, source: Path) -> tuple[SnapshotFile, ...]:
        """Keep a copy of a source file; content that the earlier snapshot has is not written again.

        A file of JSON Lines that grew at its end keeps its earlier parts, and its new lines become another part: as new
        content the whole file would follow all other files, and its old texts would count as new ones.
        """
        with self.incoming() as redacted:
            return self._keep_parts(name, redacted if redact(source, name, self.forgotten, redacted) else source)

    def _keep_parts(self, name: str, source: Path) -> tuple[SnapshotFile, ...]:
        size_bytes = source.stat().st_size
        known = self._of_size.get(size_bytes, {})
        if known and (same := known.get(sha256_of(source))):
            return (self.keep_earlier(same, name),)
        parts = self._parts_in(source, name, size_bytes)
        num_kept_bytes = _size_of(parts)
        kept = tuple(self.keep_earlier(part, name) for part in parts)
        if parts and num_kept_bytes == size_bytes:
            return kept
        with self.incoming() as beside:
            _copy_from(num_kept_bytes, source, beside)
            return (*kept, self._keep(name, beside))

    def _parts_in(self, source: Path, name: str, size_bytes: int) -> Sequence[SnapshotFile]:
        """Return the parts of an earlier file with which `source` begins; empty if it is no such file.

        That is the file of the same name, or another one in parts that was renamed. New lines must begin on a line of
        their own.
        """
        if PurePath(name).suffix not in _JSON_LINES:
            return ()
        candidates: list[Sequence[SnapshotFile]] = [self._of_name.get(name, ()), *self._in_parts.get(size_bytes, ())]
        for parts in candidates:
            num_bytes = _size_of(parts)
            if 0 < num_bytes <= size_bytes:
                with source.open("rb") as file:
                    is_begun = all(_sha256_of_next(part.size_bytes, file) == part.sha256 for part in parts)
                    if is_begun and (num_bytes == size_bytes or _ends_line(file, num_bytes)):
                        return parts
        return ()

    def keep(self, name: str, beside: Path) -> SnapshotFile:
        """Move a file that `incoming` named to its place."""
        with self.incoming() as redacted:
            if redact(beside, name, self.forgotten, redacted):
                redacted.replace(beside)
        return self._keep(name, beside)

    def _keep(self, name: str, beside: Path) -> SnapshotFile:
        size_bytes, sha256 = beside.stat().st_size, sha256_of(beside)
        same = self._of_size.get(size_bytes, {}).get(sha256)
        if same:
            return self._link(same, name)
        file = SnapshotFile(name=name, sha256=sha256, size_bytes=size_bytes, snapshot=self.earlier.number + 1)
        beside.replace(self._place_of(file))
        return file

    def keep_earlier(self, file: SnapshotFile, name: str) -> SnapshotFile:
        """Keep a file of the earlier snapshot under `name`. A text may have been forgotten since."""
        with self.incoming() as beside:
            if not self._is_earlier_clean and redact(self.earlier.path_of(file), name, self.forgotten, beside):
                left = self._keep(name, beside)
                return file.model_copy(update={"name": name, "sha256": left.sha256, "size_bytes": left.size_bytes})
        return self._link(file, name)

    def _link(self, file: SnapshotFile, name: str) -> SnapshotFile:
        place = self._place_of(file)
        if not place.exists():
            link_or_copy(self.earlier.path_of(file), place)
        return file.model_copy(update={"name": name})

    @contextmanager
    def incoming(self) -> Iterator[Path]:
        """Yield the path of a file to write and then to `keep`."""
        beside = self._folder / f"incoming-{token_hex(4)}"
        try:
            yield beside
        finally:
            beside.unlink(missing_ok=True)

    def _place_of(self, file: SnapshotFile) -> Path:
        place = self._folder / file.object_name
        place.parent.mkdir(parents=True, exist_ok=True)
        return place


def _size_of(parts: Sequence[SnapshotFile]) -> int:
    return sum(part.size_bytes for part in parts)


def _sha256_of_next(num_bytes: int, file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while num_bytes and (block := file.read(min(num_bytes, _BLOCK_BYTES))):
        digest.update(block)
        num_bytes -= len(block)
    return digest.hexdigest()


def _ends_line(file: BinaryIO, num_bytes: int) -> bool:
    """Whether the first `num_bytes` of the file end with a line."""
    file.seek(num_bytes - 1)
    return file.read(1) == b"\n"


def _copy_from(num_bytes: int, source: Path, target: Path) -> None:
    """Copy a file without its first `num_bytes`."""
    with source.open("rb") as whole, target.open("wb") as rest:
        whole.seek(num_bytes)
        shutil.copyfileobj(whole, rest, _BLOCK_BYTES)
