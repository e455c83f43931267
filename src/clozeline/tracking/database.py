"""MLflow's database: made, or brought to the installed MLflow's schema, once and before anything parallel."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from clozeline.errors import TransientError
from clozeline.tracking.addresses import database_of, files_beside
from clozeline.tracking.mlflow_adapter import client_of_database

EXPERIMENT: Final = "clozeline"


def prepare(tracking_uri: str) -> MlflowClient:
    """A client of `tracking_uri`, which cannot meet a half-made or outdated SQLite database.

    Of four processes that open a new SQLite file at once, three fail in its migrations: hence the lock. A server's
    database is its administrator's.
    """
    database = database_of(tracking_uri)
    if database is None:
        return MlflowClient(tracking_uri, registry_uri=tracking_uri)
    database.parent.mkdir(parents=True, exist_ok=True)
    with database.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return client_of_database(tracking_uri)


def experiments(client: MlflowClient) -> list[Experiment]:
    """This project's, the first one first: it gets another one where its database is moved to."""
    found = client.search_experiments(filter_string=f"name LIKE '{EXPERIMENT}%'", order_by=["creation_time ASC"])
    return [known for known in found if known.name == EXPERIMENT or known.name.startswith(f"{EXPERIMENT} in ")]


def experiment_id(client: MlflowClient, tracking_uri: str) -> str:
    """The experiment of this project's new runs; beside a local database, its files lie there too.

    An experiment keeps the address of its files. So where a database was moved or copied with the files beside it,
    new runs get an experiment of their own: nothing is written to where it was.

    Raises:
        TransientError: the server does not answer.
    """
    database = database_of(tracking_uri)
    files = None if database is None else files_beside(database)
    with answering(tracking_uri):
        known = experiments(client)
        for experiment in known:
            location = str(experiment.artifact_location)
            # Another kind of address was given by a person, who keeps the files elsewhere.
            if files is None or not location.startswith("file:") or location == files.as_uri() or not files.is_dir():
                return str(experiment.experiment_id)
        name = f"{EXPERIMENT} in {files.parent}" if known and files else EXPERIMENT
        return client.create_experiment(name, artifact_location=files.as_uri() if files else None)


@contextmanager
def answering(tracking_uri: str) -> Iterator[None]:
    """Turn what MLflow raises into ours.

    Raises:
        TransientError: the server, or the database, does not answer.
    """
    try:
        yield
    except MlflowException as error:
        raise TransientError(
            "MLflow does not answer",
            given=tracking_uri,
            expected="an MLflow server or database",
            do="start it, or unset MLFLOW_TRACKING_URI to use the project's own database",
        ) from error
