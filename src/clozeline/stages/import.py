"""Stage `import`: turn a published model into a package, with its head and its pooling as they are."""

import math
from pathlib import Path

from clozeline.exporting import exams, ladder, packaging, quantization
from clozeline.exporting.trained import opened_published
from clozeline.params.delivery import ExportParams, ImportParams
from clozeline.records.finetune.scored_items import HeldOut
from clozeline.system.errors import DataError

# One item of so many calibrates, if there are few.
_OF_CALIBRATION = 8


def run(params: ImportParams, export: ExportParams, *, items: Path, lock: Path, out: Path, metrics: Path) -> None:
    """Package the published model of `params` in the folder `out`.

    Args:
        params: one section of `imports` in params.yaml.
        export: the section `export`, whose ladder and gates INT8 has to pass.
        items: the items on which INT8 is compared with fp32, one JSON object per line.
        lock: the requirements lock; its hash goes into the manifest.
        out: package folder, unchanged if anything fails.
        metrics: JSON file.

    Raises:
        ArtifactError: a file of the model is missing or is not the one that was imported; or the model cannot be
            exported.
        DataError: the model can answer none of the items.
        GateError: the fp32 graph does not compute what the published model computes.
        TransientError: the hub does not answer.
    """
    examined = _examined(items, export)
    with opened_published(params) as trained:
        packaging.write_package(trained, examined, export, lock=lock, out=out, metrics=metrics)


def _examined(file: Path, params: ExportParams) -> packaging.Examined:
    """Return the items of `file`: the first for the exam, the others to calibrate ranges of activations.

    Raises:
        ArtifactError: a line is not an item.
        DataError: there are fewer than two items.
    """
    items = HeldOut.lines(file, do="run `clozeline import` again")
    num_calibration = min(quantization.NUM_CALIBRATION_TEXTS, math.ceil(len(items) / _OF_CALIBRATION))
    deciding = items[: len(items) - num_calibration][: params.num_agreement_texts]
    if not deciding:
        raise DataError(
            f"{file} holds {len(items)} items, too few to compare INT8 with fp32",
            do=f"run `clozeline import` again, which writes at least {ladder.MIN_AGREEMENT_TEXTS}",
        )
    texts = [item.text for item in items]
    sample = exams.Sample(texts=texts[: len(deciding)], labels=[None] * len(deciding), held_out=deciding)
    return packaging.Examined(sample, texts[len(items) - num_calibration :])
