"""Where MLflow says that files lie, and where they are. Importing this loads no MLflow."""

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

SQLITE: Final = "sqlite:///"
_FILES: Final = "artifacts"


def database_of(tracking_uri: str) -> Path | None:
    """The file of a SQLite database; None: `tracking_uri` is another kind of store."""
    if not tracking_uri.startswith(SQLITE):
        return None
    return Path(tracking_uri.removeprefix(SQLITE).partition("?")[0])


def files_beside(database: Path) -> Path:
    """The folder of the files that belong to a database of the project's own."""
    return (database.parent / _FILES).resolve()


def local_path(address: str) -> Path | None:
    """The file or folder of a `file:` address, or of a path; None: it is not on this machine."""
    parts = urlsplit(address)
    return Path(url2pathname(parts.path)) if parts.scheme in {"", "file"} else None


def present(address: str, tracking_uri: str) -> str:
    """Where the files are that MLflow says are at `address`.

    MLflow writes addresses down whole, and has no call that changes one. A project's own database that was moved or
    copied with the files beside it says where they were: what is beside it now is meant.
    """
    database, written = database_of(tracking_uri), local_path(address)
    if database is None or written is None:
        return address
    parts = str(written).split(f"/{_FILES}/")
    places = (files_beside(database) / f"/{_FILES}/".join(parts[i:]) for i in range(1, len(parts)))
    found = next((place for place in places if place.exists()), written)
    return address if found == written else found.as_uri()
