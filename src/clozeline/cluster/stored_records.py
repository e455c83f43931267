"""Records of tasks in a store: the files that a task wrote, each with its size and its sha256."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from clozeline.cluster.store import RECORD, Store, StoredFile
from clozeline.storage.fingerprints import sha256_of


@dataclass(frozen=True)
class StoredRecord:
    """A task whose files are in the store."""

    told: Mapping[str, Any]
    files: tuple[StoredFile, ...]
    """The record is the last one."""

    @classmethod
    def read(cls, store: Store, folder: Path) -> "StoredRecord | None":
        """Return the record of the task whose files belong into `folder`; None if it is missing or damaged, or does
        not last."""
        content = store.read(f"{place_of(folder)}/{RECORD}") or b""
        try:
            found = cls.of(folder, content)
            return found if found.told["lasting"] else None
        except (ValueError, TypeError, KeyError):
            return None

    @classmethod
    def of(cls, folder: Path, content: bytes) -> "StoredRecord":
        """Raises:
        ValueError, TypeError or KeyError: the content is not that of a record.
        """
        told, place = json.loads(content), place_of(folder)
        sizes = {**told["bytes"], RECORD: len(content)}
        hashes = {**told["sha256"], RECORD: sha256(content).hexdigest()}
        return cls(
            told,
            tuple(
                StoredFile(folder / name, f"{place}/{name}", sizes[name], hashes[name], told["task"]) for name in hashes
            ),
        )


def place_of(folder: Path) -> str:
    """Return the folder of a task in the store: its path from the name of the ledger's folder on."""
    return "/".join(folder.parts[-3:])


def put_by_hash(path: Path, place: str, store: Store) -> StoredFile:
    """Put a file that no task wrote into a folder of the store, unless it is there."""
    digest, size = sha256_of(path), path.stat().st_size
    target = f"{place}/{digest}"
    if store.sizes(target).get(target) != size:
        store.put(path, target)
    return StoredFile(path, target, size, digest, "this machine")
