"""Files of a cache or remote, as its file system lists them, and folders, as DVC lists their files."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

from pydantic import BaseModel, RootModel

_FOLDER: Final = ".dir"
_TIMES: Final = ("mtime", "LastModified", "last_modified", "updated")
"""Keys under which the file systems of fsspec give the time at which a file was written."""


class _Listed(BaseModel):
    relpath: str
    md5: str


class _FolderList(RootModel[list[_Listed]]):
    """Content of the object that DVC keeps for a folder."""


def is_folder(oid: str) -> bool:
    """Whether an object is the list of a folder's files. Its name tells; metrics, for example, are JSON files, too."""
    return oid.endswith(_FOLDER)


def content_hash(oid: str) -> str:
    """Return the md5 of an object's content."""
    return oid.removesuffix(_FOLDER)


def listed_files(content: bytes) -> dict[str, str]:
    """Return name → hash of the files in a folder, from the content of its object.

    Raises:
        ValueError: it is not a list of files.
    """
    return {file.relpath: file.md5 for file in _FolderList.model_validate_json(content).root}


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a cache or remote."""

    path: str
    num_bytes: int
    written: datetime | None
    """None if the file system does not say."""

    @classmethod
    def of(cls, path: str, info: Mapping[str, Any]) -> Self:
        return cls(path, int(info.get("size") or 0), _written(info))

    def is_older_than(self, before: datetime) -> bool:
        """Whether the file was written before `before`; False if that is not known."""
        return self.written is not None and self.written < before


def stored_files(database: Any, folder: str) -> list[StoredFile]:
    """Return every file below `folder` of an object database of DVC; none if the folder is missing."""
    fs = database.fs.fs
    fs.invalidate_cache()
    try:
        found = fs.find(folder, detail=True)
        # The local file system of DVC gives the paths alone.
        infos = found if isinstance(found, dict) else {path: fs.info(path) for path in found}
    except FileNotFoundError:
        return []
    return [StoredFile.of(path, info) for path, info in infos.items()]


def _written(info: Mapping[str, Any]) -> datetime | None:
    written = next((info[key] for key in _TIMES if key in info), None)
    match written:
        case int() | float():
            return datetime.fromtimestamp(written, UTC)
        case str():
            with suppress(ValueError):
                written = datetime.fromisoformat(written)
    if not isinstance(written, datetime):
        return None
    return written if written.tzinfo else written.replace(tzinfo=UTC)
