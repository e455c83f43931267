"""Calls of MLflow's registry: its errors translated into Clozeline's, and another try while its database is busy."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from clozeline.errors import ArtifactError, TransientError
from clozeline.tracking.database import check_allowed
from clozeline.tracking.mlflow_adapter import files_are_gone, is_absent, is_busy, is_of_a_server
from clozeline.tracking.stored_files import store_errors

_STORES: Final[Mapping[str, str]] = MappingProxyType({"google": "google-cloud-storage", "azure": "azure-storage-blob"})
"""Package to install for a module that MLflow imports to reach a store, where the two names differ."""
_TRIES: Final = 10


@contextmanager
def registry_errors(what: str, tracking_uri: str) -> Iterator[None]:
    """Translate MLflow's errors about `what` into Clozeline's.

    Raises:
        ArtifactError: the registry does not have `what`, or reaching its store needs a package that is not installed;
            or the server refuses the caller.
        TransientError: the registry does not answer.
    """
    try:
        yield
    except (MlflowException, OSError) as error:
        if not is_of_a_server(error):
            raise
        if isinstance(error, MlflowException) and is_absent(error):
            raise ArtifactError(
                f"the registry has no {what}",
                given=what,
                expected=f"a registered model, version or alias of {tracking_uri}",
                do="run `clozeline release` first, or name one that `clozeline ui` shows",
            ) from error
        check_allowed(error, tracking_uri)
        raise TransientError(
            "the model registry does not answer",
            given=f"{tracking_uri}: {' '.join(str(error).split())[:300]}",
            expected="an MLflow server or database",
            do="start it, or correct MLFLOW_TRACKING_URI",
        ) from error
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        raise ArtifactError(
            f"{what} cannot be reached: a package is not installed",
            given=f"{tracking_uri}: {error}",
            expected="the package that MLflow needs for such a store",
            do=f"install it: `pip install {_STORES.get(module, module)}`",
        ) from error


@contextmanager
def file_errors(files: str, tracking_uri: str) -> Iterator[None]:
    """Translate MLflow's errors while it reads `files` of a version that the registry has.

    Raises:
        ArtifactError: the files are gone, or their store refuses the key; or as in `registry_errors`.
        TransientError: their store does not answer; or as in `registry_errors`.
    """
    with registry_errors(files, tracking_uri), store_errors(tracking_uri):
        try:
            yield
        except MlflowException as error:
            if not files_are_gone(error):
                raise
            raise ArtifactError(
                f"the {files} are gone",
                given=f"{tracking_uri}: {error}",
                expected="the files that were stored when it was registered, beside MLflow's database",
                do="restore them, or delete that version (`clozeline ui`) and release the model again",
            ) from error


def tried_again(call: Callable[[], object]) -> None:
    """Call until MLflow's database is not busy with the same rows, at most ten times; raises MLflow's errors."""
    for is_last_try in (*[False] * (_TRIES - 1), True):
        try:
            call()
            return
        except MlflowException as error:
            if is_last_try or not is_busy(error):
                raise
        time.sleep(random.uniform(0.1, 1.0))


def create_model(client: MlflowClient, name: str, description: str | None = None) -> None:
    """Create the registered model `name` if it is missing; raises MLflow's errors."""
    try:
        client.create_registered_model(name, description=description)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
