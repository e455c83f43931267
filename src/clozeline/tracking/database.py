"""MLflow's database: made, or brought to the installed MLflow's schema, once and before anything parallel."""

import fcntl
from pathlib import Path
from typing import Final

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from clozeline.errors import TransientError

_SQLITE: Final = "sqlite:///"
EXPERIMENT: Final = "clozeline"


def prepare(tracking_uri: str) -> MlflowClient:
    """A client of `tracking_uri` whose first call cannot meet a half-made or outdated SQLite database.

    Of four processes that open a new SQLite file at once, three fail in its migrations: hence the lock.
    A server's database is its administrator's.
    """
    client = MlflowClient(tracking_uri, registry_uri=tracking_uri)
    if tracking_uri.startswith(_SQLITE):
        file = Path(tracking_uri.removeprefix(_SQLITE))
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _upgrade(client, tracking_uri)
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
        if tracking_uri.startswith(_SQLITE):
            location = (Path(tracking_uri.removeprefix(_SQLITE)).parent / "artifacts").resolve().as_uri()
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
