"""manifest.json of `data/raw`: the source of a snapshot, and its files in the order in which they were first seen."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError

from clozeline.artifacts.record import Record
from clozeline.errors import ArtifactError

MANIFEST = "manifest.json"


class SnapshotFile(Record):
    """One file of the source, a part of a file of JSON Lines that grew, or one shard of the source's records."""

    name: str
    """Name within the source, also of each part of a file that grew; a shard is named after its snapshot and number."""
    sha256: str
    size_bytes: int
    snapshot: Annotated[int, Field(ge=1)]
    """Number of the first snapshot that holds this content."""
    revision: str | None = None
    """ETag of a remote file."""
    records: int | None = None
    """Number of records in a shard; None for a file of the source."""

    @property
    def object_name(self) -> str:
        """Path of the content below the folder of the snapshot: equal content is kept once."""
        return f"files/{self.sha256[:2]}/{self.sha256[2:]}"


class Snapshot(Record):
    """A source as it was read. It holds no time, so the same source gives the same bytes."""

    kind: str
    """Kind of the source, as in the params."""
    place: str
    """Where the source is: a path, a URL without a password, or the name of a dataset."""
    revision: str | None = None
    """Commit of a hub dataset."""
    raw_bytes: int
    """Size of the text as the source stores it; 0 if the source does not tell."""
    forgotten: str | None = None
    """Digest of the tombstones of the texts that were left out; None: there were none."""
    files: tuple[SnapshotFile, ...]
    """Ordered by `snapshot`, then by name."""

    @property
    def number(self) -> int:
        """Number of the latest snapshot that added content; 0 if there is none."""
        return max((file.snapshot for file in self.files), default=0)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of the snapshot in `folder`.

        Raises:
            ArtifactError: the manifest is missing or damaged, or a file that it lists is missing or has another size.
        """
        try:
            snapshot = cls.model_validate_json((folder / MANIFEST).read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _unusable(folder, f"no file {MANIFEST}") from error
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            raise _unusable(folder, f"{MANIFEST}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
        for file in snapshot.files:
            path = folder / file.object_name
            if not path.is_file() or path.stat().st_size != file.size_bytes:
                raise _unusable(folder, f"{file.name}: {path} is missing or not {file.size_bytes:,} bytes long")
        return snapshot

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(self.model_dump_json(indent=2, exclude_none=True) + "\n", encoding="utf-8")


class Earlier:
    """The snapshot before the one to take: its manifest, and the place of each of its files."""

    def __init__(self, manifest: Snapshot | None, paths: Mapping[str, Path]) -> None:
        self.manifest = manifest
        self._paths = paths

    @classmethod
    def none(cls) -> Self:
        """Return the state before the first snapshot."""
        return cls(None, {})

    @classmethod
    def among(cls, paths: Mapping[str, Path]) -> Self:
        """Return the snapshot of the files `paths`, by name within its folder; none if one of them is missing."""
        if MANIFEST not in paths:
            return cls.none()
        try:
            manifest = Snapshot.model_validate_json(paths[MANIFEST].read_bytes())
        except ValidationError:  # written by another version
            return cls.none()
        if any(file.object_name not in paths for file in manifest.files):
            return cls.none()
        return cls(manifest, paths)

    @property
    def files(self) -> tuple[SnapshotFile, ...]:
        return self.manifest.files if self.manifest else ()

    @property
    def number(self) -> int:
        return self.manifest.number if self.manifest else 0

    def path_of(self, file: SnapshotFile) -> Path:
        return self._paths[file.object_name]


def _unusable(folder: Path, given: str) -> ArtifactError:
    return ArtifactError(
        f"{folder} is not a complete snapshot: {given}",
        do="restore it (`dvc checkout` or `dvc pull`), or take it again: `dvc repro -f snapshot`",
    )
