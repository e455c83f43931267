"""What a project's own database of MLflow says, read without MLflow, whose import takes two seconds.

Addresses of files: where MLflow recorded them, and where they are now. The registry's tables in a SQLite database are
only read. The rest of what the project knows of MLflow's internals is in mlflow.py.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

SQLITE: Final = "sqlite:///"
_FILES: Final = "artifacts"

Answer = TypeVar("Answer")

SCHEMA: Final = "dc11669786a5"
"""MLflow's name (Alembic revision) of the schema that is read here."""
_SECONDS_LOCKED = 10

_NAMES_QUERY = "SELECT name FROM registered_model_aliases WHERE workspace = 'default' AND alias = :alias"
_NUMBER_QUERY = """
    SELECT version FROM registered_model_aliases WHERE workspace = 'default' AND name = :name AND alias = :alias
"""
_VERSION_QUERY = """
    SELECT run_id, coalesce(storage_location, source) FROM model_versions
    WHERE workspace = 'default' AND name = :name AND version = :version AND current_stage != 'Deleted_Internal'
"""
_TAGS_QUERY = """
    SELECT key, value FROM model_version_tags WHERE workspace = 'default' AND name = :name AND version = :version
"""


def database_of(tracking_uri: str) -> Path | None:
    """Return the file of a SQLite database; None if `tracking_uri` is another kind of store."""
    if not tracking_uri.startswith(SQLITE):
        return None
    return Path(tracking_uri.removeprefix(SQLITE).partition("?")[0])


def files_beside(database: Path) -> Path:
    """Return the artifact folder of a project's own database."""
    return (database.parent / _FILES).resolve()


def local_path(address: str) -> Path | None:
    """Return the path of a `file:` address or of a plain path; None if it is not on this machine."""
    parts = urlsplit(address)
    return Path(url2pathname(parts.path)) if parts.scheme in {"", "file"} else None


def present(address: str, tracking_uri: str) -> str:
    """Return the current address of the files that MLflow recorded at `address`.

    MLflow stores absolute addresses and cannot change them. A project's own database that was moved or copied together
    with its files therefore has their old address; this returns the file beside the database, if it exists.
    """
    database, written = database_of(tracking_uri), local_path(address)
    if database is None or written is None:
        return address
    parts = str(written).split(f"/{_FILES}/")
    places = (files_beside(database) / f"/{_FILES}/".join(parts[i:]) for i in range(1, len(parts)))
    found = next((place for place in places if place.exists()), written)
    return address if found == written else found.as_uri()


@dataclass(frozen=True)
class VersionRow:
    """What the tables say of one version of a registered model."""

    run_id: str
    address: str
    """Where the files are."""
    tags: dict[str, str]


class Tables:
    """The registry's tables, as the database has them now."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def names_with(self, alias: str) -> list[str]:
        """Return the names of the models that have `alias`."""
        return [str(name) for (name,) in self._connection.execute(_NAMES_QUERY, {"alias": alias})]

    def number_at(self, name: str, alias: str) -> int | None:
        """Return the number of the version that has `alias`; None if there is none."""
        found = self._connection.execute(_NUMBER_QUERY, {"name": name, "alias": alias}).fetchone()
        return None if found is None or found[0] is None else int(found[0])

    def version(self, name: str, number: int) -> VersionRow | None:
        """Return a version; None if it is missing or was deleted."""
        given = {"name": name, "version": number}
        found = self._connection.execute(_VERSION_QUERY, given).fetchone()
        if found is None:
            return None
        run_id, address = found
        return VersionRow(run_id or "", address or "", dict(self._connection.execute(_TAGS_QUERY, given)))

    def has_known_schema(self) -> bool:
        found = self._connection.execute("SELECT version_num FROM alembic_version").fetchone()
        return found is not None and found[0] == SCHEMA


def ask(tracking_uri: str, question: Callable[[Tables], Answer | None]) -> Answer | None:
    """Return the answer to `question`; None also if there is no SQLite database, or it is unreadable or has another
    schema: MLflow then reports the fault, or upgrades the schema.
    """
    file = database_of(tracking_uri)
    has_workspaces = any(name in os.environ for name in ("MLFLOW_WORKSPACE", "MLFLOW_ENABLE_WORKSPACES"))
    if file is None or not file.is_file() or has_workspaces:
        return None
    address = f"file:{quote(str(file.resolve()))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=_SECONDS_LOCKED)) as connection:
            tables = Tables(connection)
            return question(tables) if tables.has_known_schema() else None
    except sqlite3.Error:
        return None
