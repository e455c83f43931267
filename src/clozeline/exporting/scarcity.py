"""Warnings about too little text for the proof of INT8."""

import logging
from collections.abc import Sequence
from pathlib import Path

from clozeline.artifacts.export.evidence import Rung
from clozeline.exporting.proof import lacking
from clozeline.exporting.quantization import NUM_CALIBRATION_TEXTS
from clozeline.exporting.sample import Sample
from clozeline.params import ExportParams

_LOG = logging.getLogger(__name__)


def warn_of_few_texts(texts: Path, sample: Sample, calibration: Sample, params: ExportParams) -> None:
    """Warn if the file `texts` has fewer texts than params.yaml requires.

    The warning counts the texts for calibration, and those of the exam unless held-out items replace them.
    """
    if len(calibration.texts) < NUM_CALIBRATION_TEXTS:
        deciding = f"{len(sample.texts)} for the exam (`num_agreement_texts`: {params.num_agreement_texts}), "
        overlap = "" if calibration.texts != sample.texts else ", the same as for the exam"
        _LOG.warning(
            "%s has only %d different texts: %s%d of %d to calibrate INT8%s",
            texts,
            len({*sample.texts, *calibration.texts}),
            "" if sample.held_out else deciding,
            len(calibration.texts),
            NUM_CALIBRATION_TEXTS,
            "" if sample.held_out else overlap,
        )


def warn_of_few_items(rungs: Sequence[Rung]) -> None:
    """Warn if the last of `rungs` answered too few items: how many, and how many are required."""
    counts = [str(check) for rung in rungs[-1:] for check in lacking(rung)]
    if counts:
        _LOG.warning(
            "the exam of INT8 is too small to be trusted: %s; give preprocess more text (or the task more items), more"
            " varied if all answers are the same; or raise `num_agreement_texts`",
            "; ".join(counts),
        )
