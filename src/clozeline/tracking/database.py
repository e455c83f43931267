"""MLflow's database: made, or brought to the installed MLflow's schema, once and before anything parallel."""

import contextlib
import fcntl
import sqlite3
from pathlib import Path
from typing import Final

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from clozeline.errors import TransientError
from clozeline.tracking.addresses import EXPERIMENT, SQLITE, files_beside, moved_from

# Where MLflow writes down where files lie, each as an absolute address.
_ADDRESSES: Final = {
    "experiments": ("artifact_location",),
    "runs": ("artifact_uri",),
    "logged_models": ("artifact_location",),
    "model_versions": ("source", "storage_location"),
}


def prepare(tracking_uri: str) -> MlflowClient:
    """A client of `tracking_uri` whose first call cannot meet a half-made or outdated SQLite database.

    Of four processes that open a new SQLite file at once, three fail in its migrations: hence the lock. A database
    that was moved or copied with its files beside it is told where they lie now: MLflow would look for them, and
    write new ones, where they were. A server's database is its administrator's.
    """
    client = MlflowClient(tracking_uri, registry_uri=tracking_uri)
    if tracking_uri.startswith(SQLITE):
        file = Path(tracking_uri.removeprefix(SQLITE))
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _upgrade(client, tracking_uri)
            _follow_files(file)
    return client


def experiment_id(client: MlflowClient, tracking_uri: str) -> str:
    """The experiment of this project's runs; beside a local database, its files lie there too.

    Raises:
        TransientError: the server does not answer.
    """
    try:
        known = client.get_experiment_by_name(EXPERIMENT)
        if known:
            return str(known.experiment_id)
        location = None
        if tracking_uri.startswith(SQLITE):
            location = files_beside(Path(tracking_uri.removeprefix(SQLITE))).as_uri()
        return client.create_experiment(EXPERIMENT, artifact_location=location)
    except MlflowException as error:
        raise TransientError(
            "MLflow does not answer",
            given=tracking_uri,
            expected="an MLflow server or database",
            do="start it, or unset MLFLOW_TRACKING_URI to use the project's own database",
        ) from error


def _upgrade(client: MlflowClient, tracking_uri: str) -> None:
    try:
        client.search_experiments(max_results=1)  # makes what is not there
    except MlflowException as error:
        if "out-of-date database schema" not in str(error):
            raise
        from mlflow.db import commands

        commands.main(["upgrade", tracking_uri], standalone_mode=False)


def _follow_files(database: Path) -> None:
    """Replace the address of the folder that files were in when the experiment was made, wherever it is the start."""
    with contextlib.closing(sqlite3.connect(database, timeout=60)) as connection:
        old, new = moved_from(connection, database), files_beside(database).as_uri()
        if old is None:
            return
        with connection:
            for table, columns in _ADDRESSES.items():
                for column in columns:
                    connection.execute(
                        f"UPDATE {table} SET {column} = ?1 || substr({column}, length(?2) + 1) "
                        f"WHERE {column} = ?2 OR substr({column}, 1, length(?2) + 1) = ?2 || '/'",
                        (new, old),
                    )
