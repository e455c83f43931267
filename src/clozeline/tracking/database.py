"""MLflow's database: created, or upgraded to the schema of the installed MLflow, before anything runs in parallel."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from clozeline.errors import ArtifactError, TransientError
from clozeline.storage.locks import alone
from clozeline.tracking.addresses import database_of, files_beside
from clozeline.tracking.mlflow_adapter import client_of_database, is_of_a_server, refusal_in

EXPERIMENT: Final = "clozeline"
_ONCE: Final = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "15"}


def prepare(tracking_uri: str) -> MlflowClient:
    """Return a client of `tracking_uri`; create or upgrade a SQLite database first.

    A lock guards the migrations: when four processes open a new SQLite file at once without it, three of them fail. The
    database of a server is left to its administrator.

    Raises:
        ArtifactError: the file of a local database is damaged.
    """
    database = database_of(tracking_uri)
    if database is None:
        return MlflowClient(tracking_uri, registry_uri=tracking_uri)
    database.parent.mkdir(parents=True, exist_ok=True)
    with alone(database.with_suffix(".lock")):
        _require_sound(database)
        return client_of_database(tracking_uri)


def _require_sound(database: Path) -> None:
    """Let SQLite check every page; MLflow would notice only damaged pages that it reads, with a long traceback."""
    if not database.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True)) as connection:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:
        return  # a locked or unreadable file is not damaged; MLflow reports it
    except sqlite3.DatabaseError as error:
        verdict = str(error)
    if verdict != "ok":
        raise ArtifactError(
            f"MLflow's database {database} is damaged",
            given=f"{database.stat().st_size:,} bytes; SQLite says: {verdict}",
            expected="a complete SQLite database; a full disk or an interrupted copy leaves a part of it",
            do=f"restore it from a copy; or run `mv {database.name} {database.name}.damaged` in {database.parent}:"
            " the next command creates a new database, without the runs and versions of this one",
        )


def experiments(client: MlflowClient) -> list[Experiment]:
    """Return the experiments of this project, oldest first; a moved database gets an additional one."""
    found = client.search_experiments(filter_string=f"name LIKE '{EXPERIMENT}%'", order_by=["creation_time ASC"])
    return [known for known in found if known.name == EXPERIMENT or known.name.startswith(f"{EXPERIMENT} in ")]


def experiment_id(client: MlflowClient, tracking_uri: str) -> str:
    """Return the id of the experiment for new runs; with a local database its files lie beside the database.

    An experiment keeps the address of its files. If a database was moved or copied together with its files, new runs
    get an experiment of their own, so that nothing is written to the old location.

    Raises:
        TransientError: the server does not answer.
    """
    database = database_of(tracking_uri)
    files = None if database is None else files_beside(database)
    with answering(tracking_uri):
        known = experiments(client)
        for experiment in known:
            location = str(experiment.artifact_location)
            # An address without `file:` was set by a person who keeps the files elsewhere.
            if files is None or not location.startswith("file:") or location == files.as_uri() or not files.is_dir():
                return str(experiment.experiment_id)
        name = f"{EXPERIMENT} in {files.parent}" if known and files else EXPERIMENT
        return client.create_experiment(name, artifact_location=files.as_uri() if files else None)


def require_answer(tracking_uri: str) -> None:
    """Ask MLflow once, without the retries of its client: the answer, or that there is none, is known within seconds.

    Raises:
        ArtifactError: the server refuses the caller, or a local database is damaged.
        TransientError: the server does not answer.
    """
    with answering(tracking_uri):
        client = prepare(tracking_uri)
        if database_of(tracking_uri) is None:
            with _asking_once():
                client.search_experiments(max_results=1)


@contextmanager
def _asking_once() -> Iterator[None]:
    """Let MLflow's client ask once and wait 15 s for the answer. It reads these variables at each call."""
    before = {name: os.environ.get(name) for name in _ONCE}
    os.environ.update(_ONCE)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


_REFUSALS: Final = {401: "401 Unauthorized", 403: "403 Forbidden"}
_WHO_MAY: Final = {
    401: "a user and a password that the server knows",
    403: "a user with the permission EDIT on it to release, promote or roll back, READ to serve; or an administrator",
}
_LOG_IN: Final = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"


def check_allowed(error: Exception, tracking_uri: str) -> None:
    """Raise ArtifactError if MLflow's server refused the caller: retrying would not help.

    Raises:
        ArtifactError: the server answered 401 or 403.
    """
    status, path = refusal_in(error)
    if status in _REFUSALS:
        user = os.environ.get("MLFLOW_TRACKING_USERNAME")
        caller = f"user {user}" if user else "nobody: no user is set"
        raise ArtifactError(
            "MLflow's server refuses the request",
            given=f"{tracking_uri}{path}: {_REFUSALS[status]}, as {caller}",
            expected=_WHO_MAY[status],
            do=_LOG_IN
            if status == 401 or not user
            else f"ask its administrator for it, or {_LOG_IN} of someone who may",
        ) from error


@contextmanager
def answering(tracking_uri: str) -> Iterator[None]:
    """Translate MLflow's exceptions.

    Raises:
        ArtifactError: the server refuses the caller.
        TransientError: the server or the database does not answer.
    """
    try:
        yield
    except (MlflowException, OSError) as error:
        if not is_of_a_server(error):
            raise
        check_allowed(error, tracking_uri)
        raise TransientError(
            "MLflow does not answer",
            given=tracking_uri,
            expected="an MLflow server or database",
            do="start it, or unset MLFLOW_TRACKING_URI to use the project's own database",
        ) from error
