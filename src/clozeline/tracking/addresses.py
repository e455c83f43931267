"""What a project's own database of MLflow says, read without MLflow, whose import takes two seconds.

Addresses of files: where MLflow recorded them, and where they are now. The registry's tables in a SQLite database are
only read. The rest of what the project knows of MLflow's internals is in mlflow.py.
"""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

SQLITE = "sqlite:///"
_FILES = "artifacts"

# MLflow's name (Alembic revision) of the schema that is read here.
SCHEMA = "dc11669786a5"
_SECONDS_LOCKED = 10

_NAMES_QUERY = "SELECT name FROM registered_model_aliases WHERE workspace = 'default' AND alias = :alias"
_VERSION_QUERY = """
    SELECT version, run_id, coalesce(storage_location, source) FROM model_versions
    WHERE workspace = 'default' AND name = :name AND current_stage != 'Deleted_Internal'
        AND version = coalesce(:version, (
            SELECT version FROM registered_model_aliases WHERE workspace = 'default' AND name = :name AND alias = :alias
        ))
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


def names_with(tracking_uri: str, alias: str) -> list[str] | None:
    """Return the names of the registered models that have `alias`; None: ask MLflow."""
    found = _rows(tracking_uri, _NAMES_QUERY, alias=alias)
    return None if found is None else [str(name) for (name,) in found]


def version_at(
    tracking_uri: str, name: str, alias: str | None, version: str | None
) -> tuple[str, str, str, dict[str, str]] | None:
    """Return number, id of the run, address of the files, and tags of the version with that number or alias.

    None: ask MLflow; also if it is missing or was deleted, which MLflow reports.
    """
    found = _rows(tracking_uri, _VERSION_QUERY, name=name, alias=alias, version=version)
    if not found:
        return None
    number, run_id, address = found[0]
    tags = _rows(tracking_uri, _TAGS_QUERY, name=name, version=number)
    return None if tags is None else (str(number), run_id or "", address or "", dict(tags))


def _rows(tracking_uri: str, query: str, **given: object) -> list[Any] | None:
    """Return what a query of the registry's tables finds now.

    None if there is no SQLite database, or it is unreadable or has another schema: MLflow then reports the fault, or
    upgrades the schema.
    """
    file = database_of(tracking_uri)
    has_workspaces = any(name in os.environ for name in ("MLFLOW_WORKSPACE", "MLFLOW_ENABLE_WORKSPACES"))
    if file is None or not file.is_file() or has_workspaces:
        return None
    address = f"file:{quote(str(file.resolve()))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=_SECONDS_LOCKED)) as connection:
            schema = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            return connection.execute(query, given).fetchall() if schema == (SCHEMA,) else None
    except sqlite3.Error:
        return None
