"""MLflow's errors, translated into Clozeline's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

from mlflow.exceptions import MlflowException

from clozeline.errors import ArtifactError, TransientError
from clozeline.tracking.database import check_allowed

# A missing alias is INVALID_PARAMETER_VALUE, a missing model or version RESOURCE_DOES_NOT_EXIST.
_ABSENT: Final = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}
# MLflow also reports RESOURCE_DOES_NOT_EXIST for a version whose files were removed.
_NO_FILES: Final = "No such artifact"
_STORES: Final[Mapping[str, str]] = MappingProxyType({"google": "google-cloud-storage", "azure": "azure-storage-blob"})
"""Package to install for a module that MLflow imports to reach a store, where the two names differ."""


def is_absent(error: MlflowException) -> bool:
    """Whether the registry answered that the model, version or alias is missing."""
    return error.error_code in _ABSENT


@contextmanager
def told(what: str, tracking_uri: str) -> Iterator[None]:
    """Translate MLflow's errors about `what` into Clozeline's.

    Raises:
        ArtifactError: the registry does not have `what`, its files are gone, or reaching their store needs a package
            that is not installed; or the server refuses the caller.
        TransientError: the registry does not answer.
    """
    try:
        yield
    except MlflowException as error:
        if is_absent(error) and _NO_FILES in str(error):
            raise ArtifactError(
                f"the files of {what} are gone",
                given=f"{tracking_uri}: {error}",
                expected="the files that were stored when it was registered, beside MLflow's database",
                do="restore them, or delete that version (`clozeline ui`) and release the model again",
            ) from error
        if is_absent(error):
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
