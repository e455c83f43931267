"""The files that MLflow stores for a run: its dvc.lock, their size, their removal, and the errors of their store."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mlflow.artifacts import download_artifacts
from mlflow.entities import Run

from clozeline.artifacts.lock import Lock
from clozeline.errors import ArtifactError, TransientError
from clozeline.tracking.addresses import present
from clozeline.tracking.database import answering
from clozeline.tracking.mlflow_adapter import error_of_store, refuses_key, remove_stored_files, stored_files

_LOCK: Final = "dvc.lock"


def address_of(run: Run, tracking_uri: str) -> str:
    """Return where the files of a run are now."""
    return present(run.info.artifact_uri, tracking_uri)


def num_bytes_of(run: Run, tracking_uri: str) -> int:
    """Return the size of the files of a run. Raises the errors of `store_errors` and `answering`."""
    with answering(tracking_uri), store_errors(tracking_uri):
        return sum(size for _, size in stored_files(address_of(run, tracking_uri), tracking_uri))


def remove_files_of(run: Run, tracking_uri: str) -> None:
    """Remove the files of a run. Raises the errors of `store_errors` and `answering`."""
    with answering(tracking_uri), store_errors(tracking_uri):
        remove_stored_files(address_of(run, tracking_uri), tracking_uri)


def lock_of(run: Run, tracking_uri: str) -> Lock | None:
    """Return the dvc.lock stored with a flow run; None if it is gone or damaged.

    Raises the errors of `store_errors` and `answering`.
    """
    address = address_of(run, tracking_uri)
    with answering(tracking_uri), store_errors(tracking_uri), tempfile.TemporaryDirectory() as folder:
        if _LOCK not in (name for name, _ in stored_files(address, tracking_uri)):
            return None
        file = download_artifacts(artifact_uri=f"{address}/{_LOCK}", dst_path=folder, tracking_uri=tracking_uri)
        try:
            return Lock.read(Path(file))
        except ArtifactError:
            return None


@contextmanager
def store_errors(tracking_uri: str) -> Iterator[None]:
    """Translate the errors of the store that MLflow keeps files in, which MLflow passes on.

    Raises:
        ArtifactError: it refuses the key.
        TransientError: it does not answer.
    """
    try:
        yield
    except Exception as raised:
        error = error_of_store(raised)
        if error is None:
            raise
        given = f"files of {tracking_uri}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if refuses_key(error):
            raise ArtifactError(
                "the store of MLflow's files refuses the key",
                given=given,
                expected="a key that may read and write there",
                do="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in as the store's own tool does",
            ) from raised
        raise TransientError(
            "the store of MLflow's files does not answer",
            given=given,
            expected="a store that this machine can reach",
            do="start it, or correct its address (MLFLOW_S3_ENDPOINT_URL)",
        ) from raised
