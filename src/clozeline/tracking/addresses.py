"""Addresses of files: where MLflow recorded them, and where they are now. Importing this loads no MLflow."""

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

SQLITE: Final = "sqlite:///"
_FILES: Final = "artifacts"


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
