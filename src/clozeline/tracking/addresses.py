"""Where MLflow's own database says that files lie. Importing this loads no MLflow."""

import sqlite3
from pathlib import Path
from typing import Final

SQLITE: Final = "sqlite:///"
EXPERIMENT: Final = "clozeline"


def files_beside(database: Path) -> Path:
    """The folder of the files that belong to a database of the project's own."""
    return (database.parent / "artifacts").resolve()


def moved_from(connection: sqlite3.Connection, database: Path) -> str | None:
    """The address that files had which lie beside `database` now; None: where it says, or elsewhere by choice."""
    known = connection.execute("SELECT artifact_location FROM experiments WHERE name = ?", [EXPERIMENT]).fetchone()
    folder = files_beside(database)
    # Another kind of address was given by a person, who keeps the files elsewhere.
    if not known or not known[0].startswith("file://") or known[0] == folder.as_uri() or not folder.is_dir():
        return None
    return str(known[0])
