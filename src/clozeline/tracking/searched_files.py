"""Search of the files that MLflow stores for runs."""

import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from mlflow.artifacts import download_artifacts
from mlflow.entities import Run, ViewType

from clozeline.progress import track
from clozeline.storage.sweep import Removal, Store
from clozeline.tracking.database import answering, experiments, prepare
from clozeline.tracking.mlflow_adapter import every, remove_stored_file, stored_files
from clozeline.tracking.stored_files import address_of, store_errors

_QUOTING: Final = {".csv", ".html", ".json", ".jsonl", ".log", ".md", ".parquet", ".txt"}
"""Suffixes of files that may quote a text."""
_PAGE: Final = 1000


@dataclass(frozen=True)
class SearchedFiles:
    """Files of runs that quote a text."""

    removable: Store
    of_versions: tuple[str, ...]
    """Those of the runs of registered versions, which are part of the version."""


def search_files(tracking_uri: str, quotes: Callable[[Path], bool], of_versions: Collection[str]) -> SearchedFiles:
    """Search the files of all runs of this project, also of deleted ones; `of_versions`: ids of the runs of versions.

    Raises:
        ArtifactError: the store of files refuses the key.
        TransientError: MLflow or the store of its files does not answer.
    """
    with answering(tracking_uri):
        client = prepare(tracking_uri)
        known = [experiment.experiment_id for experiment in experiments(client)]
        runs = list(every(client.search_runs, known, "", ViewType.ALL, _PAGE)) if known else []
    num_files, removals, kept = 0, [], []
    with answering(tracking_uri), store_errors(tracking_uri):
        for run in track(runs, "Searching files of runs", len(runs)):
            for path, size in _quoting(run, tracking_uri):
                num_files += 1
                if not _is_quoting(run, path, tracking_uri, quotes):
                    continue
                if run.info.run_id in of_versions:
                    kept.append(f"{run.info.run_name}: {path}")
                else:
                    removals.append(Removal(size, partial(_remove, run, path, tracking_uri)))
    return SearchedFiles(Store("MLflow: files of runs", num_files - len(removals), tuple(removals)), tuple(kept))


def _quoting(run: Run, tracking_uri: str) -> Iterator[tuple[str, int]]:
    files = stored_files(address_of(run, tracking_uri), tracking_uri)
    return ((path, size) for path, size in files if PurePosixPath(path).suffix in _QUOTING)


def _is_quoting(run: Run, path: str, tracking_uri: str, quotes: Callable[[Path], bool]) -> bool:
    address = f"{address_of(run, tracking_uri)}/{path}"
    with tempfile.TemporaryDirectory() as folder:
        return quotes(Path(download_artifacts(artifact_uri=address, dst_path=folder, tracking_uri=tracking_uri)))


def _remove(run: Run, path: str, tracking_uri: str) -> None:
    with answering(tracking_uri), store_errors(tracking_uri):
        remove_stored_file(address_of(run, tracking_uri), path, tracking_uri)
