"""Every undocumented part of MLflow that is used; tests/tracking/test_mlflow.py checks each.

All other code uses the documented `MlflowClient`, `mlflow.entities`, `mlflow.artifacts` and `mlflow.pyfunc`. What is
read from MLflow's tables, without importing MLflow, is in addresses.py; nothing writes them.

MLflow's database is created, or upgraded to the schema of the installed MLflow, before anything runs in parallel.
"""

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from mlflow.entities import Experiment, Run, ViewType
from mlflow.exceptions import MlflowException
from mlflow.store.entities import PagedList
from mlflow.tracking import MlflowClient
from ruamel.yaml import YAML

from clozeline.system.errors import ArtifactError, ClozelineError, TransientError
from clozeline.system.files import alone
from clozeline.tracking.addresses import database_of, files_beside

T = TypeVar("T")
# Tag that makes a run the child of another one.
PARENT_RUN = "mlflow.parentRunId"
# File that MLflow writes into the folder of a model that it loads as `models:/…`.
_LOADED_AS = "registered_model_meta"
_OUTDATED = "out-of-date database schema"
_MISSING = "RESOURCE_DOES_NOT_EXIST"
# Error code for a missing alias, and for a version that is not a number.
_NO_ALIAS = "INVALID_PARAMETER_VALUE"
# MLflow's code of a refused caller → status of HTTP.
_REFUSALS = MappingProxyType({"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403})
_ENDPOINT = re.compile(r"endpoint (/\S+) ")
# What PostgreSQL, SQLite and MySQL say of a row that another request has just inserted; MLflow answers 400 with it.
_WRITTEN_TWICE = ("duplicate key value", "UNIQUE constraint failed", "Duplicate entry")
_CLIENTS_OF_STORES = frozenset({"azure", "boto3", "botocore", "google"})
# Package to install for a module that MLflow imports to reach a store, where the two names differ.
_PACKAGES_OF_STORES = MappingProxyType({"google": "google-cloud-storage", "azure": "azure-storage-blob"})

EXPERIMENT = "clozeline"
_PAGE = 1000  # MLflow's largest
_ONE_ATTEMPT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "15"}

_WHO_MAY = {
    401: "401 Unauthorized; it takes a user and a password that the server knows",
    403: "403 Forbidden; it takes an administrator, or a user with the permission EDIT on it to release, promote or"
    " roll back, READ to serve",
}


def monitors() -> Sequence[Any]:
    """Return MLflow's monitor classes, which have `collect_metrics`, `aggregate_metrics` and `clear_metrics`.

    Raises:
        ImportError: psutil is missing, as in the serving install.
    """
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    return CPUMonitor, DiskMonitor, NetworkMonitor, GPUMonitor


def every(search: Callable[..., PagedList[T]], *given: object) -> Iterator[T]:
    """Yield the results of all pages of one of MLflow's searches for what is `given`."""
    token = None
    while True:
        page = search(*given, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def loaded_as(model: Path) -> tuple[str, str] | None:
    """Return the registered name and version of a loaded model folder; None if it did not come from a registry."""
    note = model / _LOADED_AS
    if not note.is_file():
        return None
    content = YAML(typ="safe").load(note)
    return str(content["model_name"]), str(content["model_version"])


def is_absent(error: MlflowException) -> bool:
    """Whether MLflow answered that the model, version, alias or run is missing."""
    return error.error_code in {_MISSING, _NO_ALIAS}


def is_busy(error: MlflowException) -> bool:
    """Whether MLflow's database was busy with the same rows: it gives up after three collisions of version numbers, and
    at the first of two requests that set the same tag or alias at once.
    """
    is_written_twice = any(said in str(error) for said in _WRITTEN_TWICE)
    return is_written_twice or error.error_code in {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE"}


def files_are_gone(error: MlflowException) -> bool:
    """Whether MLflow failed to read stored files because they are missing.

    A server does not say so for files that it keeps itself: MLflow then reports an internal error.
    """
    return bool(error.error_code == _MISSING)


def stored_files(address: str, tracking_uri: str) -> Iterator[tuple[str, int]]:
    """Yield each file stored at `address`, a run's, with its size in bytes."""
    store = _store_at(address, tracking_uri)
    folders: list[str | None] = [None]
    while folders:
        for found in store.list_artifacts(folders.pop()):
            if found.is_dir:
                folders.append(found.path)
            else:
                yield str(found.path), int(found.file_size or 0)


def remove_stored_files(address: str, tracking_uri: str, path: str | None = None) -> None:
    """Remove the file `path` stored at `address`, a run's; without it all files. Documented is only the removal of a
    whole run (`mlflow gc`).
    """
    store = _store_at(address, tracking_uri)
    for one in [path] if path else [found.path for found in store.list_artifacts()]:
        store.delete_artifacts(one)


def _store_at(address: str, tracking_uri: str) -> Any:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(address, tracking_uri=tracking_uri, registry_uri=tracking_uri)


def client_of_database(tracking_uri: str) -> MlflowClient:
    """Return a client of a SQLite database; create its tables, or upgrade them to the schema of the installed MLflow.

    MLflow opens the database in the constructor of the client.
    """
    try:
        return MlflowClient(tracking_uri, registry_uri=tracking_uri)
    except MlflowException as error:
        if _OUTDATED not in str(error):
            raise
    from mlflow.db import commands

    commands.main(["upgrade", tracking_uri], standalone_mode=False)
    return MlflowClient(tracking_uri, registry_uri=tracking_uri)


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
        with closing(sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True)) as connection:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:
        return  # a locked or unreadable file is not damaged; MLflow reports it
    except sqlite3.DatabaseError as error:
        verdict = str(error)
    if verdict != "ok":
        raise ArtifactError(
            f"MLflow's database {database} ({database.stat().st_size:,} bytes) is damaged; SQLite says: {verdict}",
            do=f"restore it; or rename {database.name}: the next command makes one without its runs and versions",
        )


def experiments(client: MlflowClient) -> list[Experiment]:
    """Return the experiments of this project, oldest first; a moved database gets an additional one."""
    found = client.search_experiments(filter_string=f"name LIKE '{EXPERIMENT}%'", order_by=["creation_time ASC"])
    return [known for known in found if known.name == EXPERIMENT or known.name.startswith(f"{EXPERIMENT} in ")]


def runs_of(
    client: MlflowClient, condition: str = "", *, view: int = ViewType.ACTIVE_ONLY, page: int = _PAGE
) -> Iterator[Run]:
    """Yield the runs of this project that meet a condition, the newest first; `page`: how many MLflow is asked for."""
    if known := [experiment.experiment_id for experiment in experiments(client)]:
        yield from every(client.search_runs, known, condition, view, page, ["attributes.start_time DESC"])


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
    before = {name: os.environ.get(name) for name in _ONE_ATTEMPT}
    os.environ.update(_ONE_ATTEMPT)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def answering(tracking_uri: str, about: str = "", *, files: str = "") -> Iterator[None]:
    """Translate MLflow's exceptions, and those of the store that it keeps files in, which it passes on.

    Args:
        about: part of the registry that the block asks for.
        files: stored files that it reads.

    Raises:
        ArtifactError: the registry has no `about`, or the `files` are gone; the server refuses the caller, or the store
            its key; or reaching the store needs a package that is not installed.
        TransientError: the server, the database or the store does not answer.
    """
    try:
        yield
    except ClozelineError:
        raise
    except Exception as error:
        if translated := _translated(error, tracking_uri, about, files):
            raise translated from error
        raise


def _translated(error: Exception, tracking_uri: str, about: str, files: str) -> ClozelineError | None:
    """Return the error as one of ours; None: it is not of MLflow or its store."""
    if isinstance(error, ModuleNotFoundError):
        module = (error.name or "").partition(".")[0]
        asked = about or files or "MLflow"
        problem = f"{asked} cannot be reached at {tracking_uri}: a package is not installed: {error}"
        return ArtifactError(problem, do=f"install it: `pip install {_PACKAGES_OF_STORES.get(module, module)}`")
    # MLflow passes the error of a store's client on, or raises its own while it handles it.
    for one in (error, error.__context__):
        if one and type(one).__module__.partition(".")[0] in _CLIENTS_OF_STORES:
            return _of_store(one, tracking_uri)
    if isinstance(error, MlflowException):
        if files and files_are_gone(error):
            return ArtifactError(
                f"the {files} are gone from the store beside MLflow's database: {tracking_uri}: {error}",
                do="restore them, or delete that version (`clozeline ui`) and release the model again",
            )
        if (about or files) and is_absent(error):
            return ArtifactError(
                f"the registry at {tracking_uri} has no {about or files}",
                do="run `clozeline release` first, or name one that `clozeline ui` shows",
            )
    elif getattr(error, "response", None) is None:  # what MLflow's server says about files is an error of requests
        return None
    return _refusal(error, tracking_uri) or TransientError(
        f"MLflow at {tracking_uri} does not answer: {_on_one_line(error)}",
        do="start it, or unset MLFLOW_TRACKING_URI to use the project's own database",
    )


def _of_store(error: BaseException, tracking_uri: str) -> ClozelineError:
    response = getattr(error, "response", None)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    told = f"{type(error).__name__}: {_on_one_line(error)}"
    if status in _WHO_MAY or "Credentials" in type(error).__name__:
        return ArtifactError(
            f"the store of MLflow's files ({tracking_uri}) refuses the key: {told}",
            do="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in as the store's own tool does",
        )
    return TransientError(
        f"the store of MLflow's files ({tracking_uri}) does not answer: {told}",
        do="start it, or correct its address (MLFLOW_S3_ENDPOINT_URL)",
    )


def _refusal(error: Any, tracking_uri: str) -> ArtifactError | None:
    """Return an error if MLflow's server refused the caller: retrying would not help.

    MLflow has no error class for it, and names the path that it refused only in its message.
    """
    if isinstance(error, MlflowException):
        status, named = _REFUSALS.get(error.error_code), _ENDPOINT.search(str(error))
        path = named[1] if named else ""
    else:
        status, path = error.response.status_code, urlsplit(error.response.url).path
    if status not in _WHO_MAY:
        return None
    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    caller = f"user {user}" if user else "nobody: no user is set"
    log_in = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    is_known = status == 403 and user
    return ArtifactError(
        f"MLflow's server refuses the request {tracking_uri}{path} of {caller}: {_WHO_MAY[status]}",
        do=f"ask its administrator for it, or {log_in} of someone who may" if is_known else log_in,
    )


def _on_one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
