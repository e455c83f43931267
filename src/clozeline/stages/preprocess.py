"""Stage `preprocess`: from raw text to clean text without duplicates, split by document."""

import logging
from pathlib import Path

from clozeline.machine.cores import available_cores
from clozeline.machine.workers import worker_processes
from clozeline.params import PreprocessParams
from clozeline.storage.atomic import replacing_file, replacing_folder
from clozeline.text.corpus import build_corpus
from clozeline.text.sources import open_source

_LOG = logging.getLogger(__name__)


def run(params: PreprocessParams, *, seed: int, source: Path, out: Path, metrics: Path) -> None:
    """Write one Parquet file for each split into `out`, and the counts of kept and dropped texts to `metrics`.

    Raises:
        DataError: the source is missing, empty, damaged, not of its kind, or too small to split.
        StorageError: the disk is full.
    """
    with worker_processes(available_cores()) as workers, replacing_folder(out) as folder:
        report = build_corpus(open_source(source, params.source), params, seed=seed, out=folder, workers=workers)
    with replacing_file(metrics) as file:
        file.write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    _LOG.info("%s", report.summary())
