"""Read-only access to the registry tables of a project's own SQLite database: importing MLflow takes two seconds.

A server only asks which version is live and where its files are. This module answers if the database has the known
schema and the files are on this machine. Everything else is left to MLflow.
"""

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from clozeline.artifacts.export.manifest import FILES
from clozeline.registry import MODEL_PREFIX, FetchedPackage, Registered
from clozeline.tracking.addresses import database_of, local_path, present

Answer = TypeVar("Answer")

SCHEMA: Final = "dc11669786a5"
"""MLflow's name (Alembic revision) of the schema that is read here."""
MODEL_URI: Final = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/]+)|/(?P<version>\d+))")
_SECONDS_LOCKED = 10

_NAMES = "SELECT name FROM registered_model_aliases WHERE workspace = 'default' AND alias = :alias"
_NUMBER = """
    SELECT version FROM registered_model_aliases WHERE workspace = 'default' AND name = :name AND alias = :alias
"""
_VERSION = """
    SELECT run_id, coalesce(storage_location, source) FROM model_versions
    WHERE workspace = 'default' AND name = :name AND version = :version AND current_stage != 'Deleted_Internal'
"""
_TAGS = """
    SELECT key, value FROM model_version_tags WHERE workspace = 'default' AND name = :name AND version = :version
"""


def names_with(tracking_uri: str, alias: str) -> list[str] | None:
    """Return the names of our models that have `alias`; None: ask MLflow."""

    def names(connection: sqlite3.Connection) -> list[str]:
        found = [str(name) for (name,) in connection.execute(_NAMES, {"alias": alias})]
        return [name for name in found if name.startswith(MODEL_PREFIX)]

    return _asked(tracking_uri, names)


def live(tracking_uri: str, uri: str) -> Registered | None:
    """Return the version behind `uri`; None: ask MLflow, which also reports what is wrong."""
    named = MODEL_URI.fullmatch(uri)
    return _asked(tracking_uri, partial(_live, named.groupdict())) if named else None


def _live(named: Mapping[str, str | None], connection: sqlite3.Connection) -> Registered | None:
    version = named["version"] or _value(connection, _NUMBER, named)
    if version is None:
        return None
    given = {"name": named["name"], "version": int(version)}
    found = connection.execute(_VERSION, given).fetchone()
    if found is None:
        return None
    run_id, address = found
    tags = dict(connection.execute(_TAGS, given))
    return Registered.of(str(named["name"]), version, run_id or "", address or "", tags)


def package(tracking_uri: str, uri: str) -> FetchedPackage | None:
    """Return the package behind `uri`, without copying it; None: it is not on this machine, or MLflow must be asked."""
    found = live(tracking_uri, uri)
    model = local_path(present(found.address, tracking_uri)) if found else None
    folder = package_in(model) if model else None
    return FetchedPackage(folder, found) if found and folder else None


def package_in(model: Path) -> Path | None:
    """Return the package folder inside an MLflow model; None if it has no manifest."""
    manifest = next(model.glob(f"**/{FILES.manifest}"), None)
    return manifest.parent if manifest else None


def _asked(tracking_uri: str, question: Callable[[sqlite3.Connection], Answer | None]) -> Answer | None:
    """Return the answer to `question`; None also if the database is unreadable or has another schema.

    MLflow then reports the fault, or upgrades the schema.
    """
    file = database_of(tracking_uri)
    if file is None or not file.is_file() or _has_workspaces():
        return None
    address = f"file:{quote(str(file.resolve()))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=_SECONDS_LOCKED)) as connection:
            is_known = _value(connection, "SELECT version_num FROM alembic_version", {}) == SCHEMA
            return question(connection) if is_known else None
    except sqlite3.Error:
        return None


def _has_workspaces() -> bool:
    return any(name in os.environ for name in ("MLFLOW_WORKSPACE", "MLFLOW_ENABLE_WORKSPACES"))


def _value(connection: sqlite3.Connection, query: str, given: Mapping[str, object]) -> str | None:
    found = connection.execute(query, given).fetchone()
    return None if found is None or found[0] is None else str(found[0])
