"""Says it where there is too little to prove INT8 on."""

import logging
from collections.abc import Sequence
from pathlib import Path

from clozeline.artifacts.evidence import Rung
from clozeline.exporting.proof import lacking
from clozeline.exporting.sample import Sample
from clozeline.params import ExportParams

_LOG = logging.getLogger(__name__)


def say_what_is_short(texts: Path, sample: Sample, calibration: Sample, params: ExportParams) -> None:
    """If the file `texts` has fewer than params.yaml asks for: how many decide, unless held-out items are to, and how
    many are measured on.
    """
    if len(calibration.texts) < params.num_calibration_texts:
        deciding = f"{len(sample.texts)} decide (`export.num_agreement_texts`: {params.num_agreement_texts}), "
        overlap = "" if calibration.texts != sample.texts else ", the same that decides"
        _LOG.warning(
            "%s has %d different texts: %sINT8's scales are fixed on %d%s (`export.num_calibration_texts`: %d)",
            texts,
            len({*sample.texts, *calibration.texts}),
            "" if sample.held_out else deciding,
            len(calibration.texts),
            "" if sample.held_out else overlap,
            params.num_calibration_texts,
        )


def say_what_is_lacking(rungs: Sequence[Rung]) -> None:
    """If the last of `rungs` was asked too little: how much, and how much is wanted."""
    counts = [str(check) for rung in rungs[-1:] for check in lacking(rung)]
    if counts:
        _LOG.warning(
            "INT8 was asked too little to be trusted: %s; give preprocess more text (or the task more items), of more"
            " kinds if all are answered alike; raise `export.num_agreement_texts`; or lower the limit in"
            " `export.gates`",
            "; ".join(counts),
        )
