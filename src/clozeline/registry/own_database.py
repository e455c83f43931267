"""Answers from a project's own database without importing MLflow, which takes two seconds.

A server only asks which version is live and where its files are. This module answers if the database has the known
schema and the files are on this machine. Everything else is left to MLflow.
"""

import re
from functools import partial
from pathlib import Path
from typing import Final

from clozeline.records.package import FILES
from clozeline.registry.models import MODEL_PREFIX, FetchedPackage, Registered
from clozeline.tracking.addresses import Tables, ask, local_path, present

MODEL_URI: Final = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/]+)|/(?P<version>\d+))")


def names_with(tracking_uri: str, alias: str) -> list[str] | None:
    """Return the names of our models that have `alias`; None: ask MLflow."""
    names = ask(tracking_uri, lambda tables: tables.names_with(alias))
    return None if names is None else [name for name in names if name.startswith(MODEL_PREFIX)]


def live(tracking_uri: str, uri: str) -> Registered | None:
    """Return the version behind `uri`; None: ask MLflow, which also reports what is wrong."""
    named = MODEL_URI.fullmatch(uri)
    return ask(tracking_uri, partial(_live, named)) if named else None


def _live(named: re.Match[str], tables: Tables) -> Registered | None:
    name, alias = named["name"], named["alias"]
    number = tables.number_at(name, alias) if alias else int(named["version"])
    found = tables.version(name, number) if number is not None else None
    return Registered.of(name, str(number), found.run_id, found.address, found.tags) if found else None


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
