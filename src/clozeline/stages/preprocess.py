"""Stage `preprocess`: from a snapshot of raw text to clean text without duplicates, split by document."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path

from clozeline.cluster.ledger import open_workers
from clozeline.corpus.cleaning import building, documents, portions
from clozeline.params.text import PreprocessParams
from clozeline.records import clean_text, snapshot
from clozeline.system import errors, files

_LOG = logging.getLogger(__name__)
# Share of texts that may be too short without a warning.
_MOST_SHORT = 0.1
# Share of texts that may be dropped without a warning.
_MOST_DROPPED = 0.5
# The MIN_AGREEMENT_TEXTS of `exporting/ladder.py`.
_ENOUGH_FOR_INT8 = 100
# Largest share of the texts that is advised for validation.
_LARGEST_SHARE = 0.2
# Reason → what to do about most of a source dropped for it.
_REMEDIES: Mapping[str, str] = {
    documents.DropReason.EMPTY: "check that `preprocess.source.text_field` names the field of the text",
    documents.DropReason.TOO_SHORT: "lower `preprocess.min_characters` or `preprocess.min_words` to keep them",
    documents.DropReason.EXACT_DUPLICATE: "the source repeats itself: check that it is whole, and read once",
    documents.DropReason.NEAR_DUPLICATE: "raise `preprocess.near_duplicate_similarity` to keep similar texts",
    documents.DropReason.BAD_RECORD: f"{documents.BAD_RECORDS} beside the clean text has their places",
}


def run(
    params: PreprocessParams, *, seed: int, raw: Path, forgotten: Path, out: Path, metrics: Path, work: Path
) -> None:
    """Write the clean text of each split into `out`, and the counts of kept and dropped texts to `metrics`.

    `work` keeps prepared text for later runs; it may be removed at any time. `forgotten`: file with the tombstones of
    texts to leave out; the snapshot may hold one in a form that only cleaning reveals.

    Raises:
        ArtifactError: the snapshot `raw` is missing, incomplete, or of another source; or `forgotten` cannot be used.
        DataError: the source is empty, damaged, not of its kind, or too small to split.
        StorageError: the disk is full.
    """
    text = portions.open_snapshot(raw, params.source, quarantines=params.on_bad_record == "quarantine")
    to_forget, named = snapshot.Forgotten.read(forgotten), portions.names_in_source(raw, params.source)
    try:
        with open_workers(work) as workers, files.replacing_folder(out) as folder:
            found = building.build_corpus(
                text, params, seed=seed, forgotten=to_forget, out=folder, work=work, workers=workers, named=named
            )
    except errors.DataError as error:
        raise error.with_parts(named) from error
    found.write(metrics)
    _LOG.info("%s", found.summary())
    _warn_of_dropped(found)
    _warn_of_few_validation_texts(found)


def _warn_of_few_validation_texts(found: clean_text.CorpusMetrics) -> None:
    num_texts = found.splits["validation"].documents
    share = math.ceil(100 * 1.5 * _ENOUGH_FOR_INT8 / max(found.kept, 1)) / 100
    if num_texts < _ENOUGH_FOR_INT8:
        by_share = f"set `preprocess.validation_fraction` to {share:g}"
        remedy = by_share if share <= _LARGEST_SHARE else "fp32 is served until there is more text"
        message = "only %d validation texts, and INT8 is proven on at least %d: %s"
        _LOG.warning(message, num_texts, _ENOUGH_FOR_INT8, remedy)


def _warn_of_dropped(found: clean_text.CorpusMetrics) -> None:
    num_dropped, total = sum(found.dropped.values()), found.documents_in
    if num_dropped > _MOST_DROPPED * total:
        reason = max(found.dropped, key=lambda name: found.dropped[name])
        _LOG.warning(
            "%s of %s texts were dropped, most of them as %s: %s",
            *(f"{num_dropped:,}", f"{total:,}", reason.replace("_", " ")),
            _REMEDIES.get(reason, "the metrics of this stage have the reasons"),
        )
        return
    num_short = found.dropped[documents.DropReason.TOO_SHORT.value]
    if num_short > _MOST_SHORT * total:
        remedy = _REMEDIES[documents.DropReason.TOO_SHORT]
        _LOG.warning("%s of %s texts are too short: %s", f"{num_short:,}", f"{total:,}", remedy)
