"""Stage `preprocess`: from a snapshot of raw text to clean text without duplicates, split by document."""

import logging
from pathlib import Path

from clozeline.artifacts.snapshot.forgotten import Forgotten
from clozeline.errors import DataError
from clozeline.machine.cores import available_cores
from clozeline.machine.workers import worker_processes
from clozeline.params import PreprocessParams
from clozeline.storage.atomic import replacing_folder
from clozeline.storage.kept_results import KeptResults
from clozeline.text.corpus import build_corpus
from clozeline.text.documents import DropReason
from clozeline.text.sources import named_as_in_source, open_snapshot

_LOG = logging.getLogger(__name__)
_MOST_SHORT = 0.1
"""Share of texts that may be too short without a warning."""


def run(
    params: PreprocessParams, *, seed: int, raw: Path, forgotten: Path, out: Path, metrics: Path, work: Path
) -> None:
    """Write one Parquet file for each split into `out`, and the counts of kept and dropped texts to `metrics`.

    `work` keeps prepared text for later runs; it may be removed at any time. `forgotten`: file with the tombstones of
    texts to leave out; the snapshot may hold one in a form that only cleaning reveals.

    Raises:
        ArtifactError: the snapshot `raw` is missing, incomplete, or of another source; or `forgotten` cannot be used.
        DataError: the source is empty, damaged, not of its kind, or too small to split.
        StorageError: the disk is full.
    """
    source, texts = open_snapshot(raw, params.source), Forgotten.read(forgotten)
    try:
        with worker_processes(available_cores()) as workers, replacing_folder(out) as folder:
            found = build_corpus(
                source, params, seed=seed, forgotten=texts, out=folder, kept=KeptResults(work), workers=workers
            )
    except DataError as error:
        parts = (error.problem, str(error.given), error.expected, error.do)
        problem, given, expected, do = (named_as_in_source(part, raw, params.source) for part in parts)
        raise DataError(problem, given=given, expected=expected, do=do) from error
    found.write(metrics)
    _LOG.info("%s", found.summary())
    num_short = found.dropped[DropReason.TOO_SHORT.value]
    if num_short > _MOST_SHORT * found.documents_in:
        _LOG.warning(
            "%s of %s texts are shorter than %s characters: lower `preprocess.min_characters` to keep them",
            *(f"{number:,}" for number in (num_short, found.documents_in, params.min_characters)),
        )
