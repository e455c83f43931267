"""MLflow's client, its faults told in our words."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

from mlflow.exceptions import MlflowException

from clozeline.errors import ArtifactError, TransientError

# A missing alias is INVALID_PARAMETER_VALUE, a missing model or version RESOURCE_DOES_NOT_EXIST.
_ABSENT: Final = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}
# A version whose files were removed is RESOURCE_DOES_NOT_EXIST, too.
_NO_FILES: Final = "No such artifact"
_STORES: Final[Mapping[str, str]] = MappingProxyType({"google": "google-cloud-storage", "azure": "azure-storage-blob"})
"""By the module that MLflow imports to reach a store: the package it is in, where that is called otherwise."""


def is_absent(error: MlflowException) -> bool:
    """Whether the registry answered that there is no such thing."""
    return error.error_code in _ABSENT


@contextmanager
def told(what: str, tracking_uri: str) -> Iterator[None]:
    """Turn MLflow's faults about `what` into ours.

    Raises:
        ArtifactError: the registry has no such thing, or its files are gone, or in a store that cannot be reached
            with what is installed.
        TransientError: it does not answer.
    """
    try:
        yield
    except MlflowException as error:
        if is_absent(error) and _NO_FILES in str(error):
            raise ArtifactError(
                f"the files of {what} are gone",
                given=f"{tracking_uri}: {error}",
                expected="the files that were stored when it was registered, beside MLflow's database",
                do="put them back, or delete that version (`clozeline ui`) and release the model again",
            ) from error
        if is_absent(error):
            raise ArtifactError(
                f"the registry has no {what}",
                given=what,
                expected=f"a registered model, version or alias of {tracking_uri}",
                do="run `clozeline release` first, or name one that `clozeline ui` shows",
            ) from error
        raise TransientError(
            "the model registry does not answer",
            given=f"{tracking_uri}: {' '.join(str(error).split())[:300]}",
            expected="an MLflow server or database",
            do="start it, or correct MLFLOW_TRACKING_URI",
        ) from error
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        raise ArtifactError(
            f"{what} cannot be reached with what is installed",
            given=f"{tracking_uri}: {error}",
            expected="the package that MLflow reaches such a store with",
            do=f"install it here: `pip install {_STORES.get(module, module)}`",
        ) from error
