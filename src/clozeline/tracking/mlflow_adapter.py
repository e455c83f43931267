"""Every undocumented part of MLflow that is used; tests/tracking/test_mlflow_adapter.py checks each.

All other code uses the documented `MlflowClient`, `mlflow.entities`, `mlflow.artifacts` and `mlflow.pyfunc`. What is
read from MLflow's tables, without importing MLflow, is in `mlflow_tables`; nothing writes them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from mlflow.exceptions import MlflowException
from mlflow.store.entities import PagedList
from mlflow.tracking import MlflowClient
from ruamel.yaml import YAML

T = TypeVar("T")
PARENT_RUN: Final = "mlflow.parentRunId"
"""Tag that makes a run the child of another one."""
_LOADED_AS: Final = "registered_model_meta"
"""File that MLflow writes into the folder of a model that it loads as `models:/…`."""
_OUTDATED: Final = "out-of-date database schema"
_MISSING: Final = "RESOURCE_DOES_NOT_EXIST"
_NO_ALIAS: Final = "INVALID_PARAMETER_VALUE"
"""Error code for a missing alias, and for a version that is not a number."""
_REFUSALS: Final = MappingProxyType({"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403})
_ENDPOINT: Final = re.compile(r"endpoint (/\S+) ")
_WRITTEN_TWICE: Final = ("duplicate key value", "UNIQUE constraint failed", "Duplicate entry")
"""What PostgreSQL, SQLite and MySQL say of a row that another request has just inserted; MLflow answers 400 with it."""
_CLIENTS_OF_STORES: Final = frozenset({"azure", "boto3", "botocore", "google"})


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


def is_of_a_server(error: Exception) -> bool:
    """Whether MLflow's server answered with an error; what it says about files is an error of requests."""
    return isinstance(error, MlflowException) or getattr(error, "response", None) is not None


def refusal_in(error: Exception) -> tuple[int, str]:
    """Return the HTTP status with which MLflow's server refused the caller, and the path that it refused.

    MLflow has no error class for it, and names the path only in its message.

    Returns:
        401 or 403 with the path; (0, "") if the server did not refuse.
    """
    if not isinstance(error, MlflowException):
        answer = getattr(error, "response", None)
        return (0, "") if answer is None else (answer.status_code, urlsplit(answer.url).path)
    status = _REFUSALS.get(error.error_code, 0)
    path = _ENDPOINT.search(str(error)) if status else None
    return status, path[1] if path else ""


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


def remove_stored_files(address: str, tracking_uri: str) -> None:
    """Remove all files stored at `address`, a run's; documented is only the removal of a whole run (`mlflow gc`)."""
    store = _store_at(address, tracking_uri)
    for found in store.list_artifacts():
        store.delete_artifacts(found.path)


def _store_at(address: str, tracking_uri: str) -> Any:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(address, tracking_uri=tracking_uri, registry_uri=tracking_uri)


def error_of_store(error: BaseException) -> BaseException | None:
    """Return the error that the client of a store of files (S3, …) raised; None if MLflow itself failed.

    MLflow passes such an error on, or raises its own while it handles it.
    """
    chain = (error, error.__context__)
    return next((one for one in chain if type(one).__module__.partition(".")[0] in _CLIENTS_OF_STORES), None)


def refuses_key(error: BaseException) -> bool:
    """Whether the error of a store's client means that the key is missing or may not do that."""
    response = getattr(error, "response", None)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    return status in {401, 403} or "Credentials" in type(error).__name__


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


def remove_stored_file(address: str, path: str, tracking_uri: str) -> None:
    """Remove the file `path` stored at `address`, a run's."""
    _store_at(address, tracking_uri).delete_artifacts(path)
