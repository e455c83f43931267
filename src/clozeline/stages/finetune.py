"""Fine-tunes the encoder for one labelled task, with an honest test set and a baseline beside it."""

import csv
import json
import logging
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from clozeline.atomic import replacing_file, replacing_folder
from clozeline.params import FinetuneParams
from clozeline.progress import ProgressBar
from clozeline.tasks.best_epoch import BestEpoch, EpochPoint
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.task import TaskInputs, TaskReport
from clozeline.tasks.training import prepare_training, use_threads
from clozeline.text.contamination import contamination, text_batches
from clozeline.tracking import RunLogger, run_logger
from clozeline.training.callbacks import Callback
from clozeline.training.state import CurvePoint

_LOG = logging.getLogger(__name__)
_NO_COLUMNS = ("f1",)
"""Of a table without a row: what dvc.yaml draws a bar of."""


def run(
    params: FinetuneParams,
    *,
    seed: int,
    task: str,
    encoder: Path,
    data: Path,
    pretraining_text: Path,
    out: Path,
    metrics: Path,
    confusion: Path,
    classes: Path,
    examples: Path,
    work: Path,
) -> None:
    """Train `task` on `data`; write the model to `out`, its figures to `metrics`.

    Every test answer goes to `confusion`, and the figures of each class to `classes`, both as CSV (of a kind that has
    none, without a row); some test items, as a person reads them, to `examples`.

    `pretraining_text` is only read to count test texts that the encoder has seen; `work` holds the checkpoints
    while the training is not finished.

    Raises:
        ArtifactError: the encoder is damaged, or a checkpoint belongs to another run.
        DataError: the data cannot be read, or there is too little of it.
        ParamsError: `max_length` is longer than the encoder can read.
        TrainingError: the loss or the gradient is not finite.
    """
    use_threads(params.num_threads)
    inputs = TaskInputs(params, seed, encoder, data, pretraining_text)
    prepared = KINDS[params.kind].prepare(inputs)
    training = prepare_training(prepared, inputs, work / task)
    points = _train(training, task)
    report = prepared.test()
    with replacing_folder(out) as folder:
        prepared.save(folder)
    _write_csv(confusion, ("actual", "predicted"), report.confusion)
    columns = tuple(next(iter(report.per_class.values()), _NO_COLUMNS))
    rows = ((label, *(repr(of_class[name]) for name in columns)) for label, of_class in report.per_class.items())
    _write_csv(classes, ("class", *columns), rows)
    best = max(points, key=lambda point: point.validation_score)
    chosen = {"best_epoch": best.epoch, "validation_score": best.validation_score}
    with replacing_file(metrics) as file:
        seen = _contamination(report, pretraining_text, task)
        file.write_text(json.dumps(chosen | report.metrics | seen, indent=2) + "\n", encoding="utf-8")
    with replacing_folder(examples) as folder:
        told = json.dumps([asdict(item) for item in report.examples], indent=2, ensure_ascii=False)
        (folder / "examples.json").write_text(told + "\n", encoding="utf-8")
    training.loop.checkpoints.remove()


def _contamination(report: TaskReport, pretraining_text: Path, task: str) -> dict[str, int | float]:
    if not report.test_texts:
        return {}
    found = contamination(report.test_texts, text_batches(pretraining_text))
    _LOG.info("%s: of %s test texts, %s", task, f"{found.num_texts:,}", found)
    return {
        "contaminated_fraction": found.fraction,
        "num_test_near_duplicates_in_pretraining": found.num_near_duplicates,
        "num_test_contained_in_pretraining": found.num_contained,
    }


def _train(training: BestEpoch, task: str) -> list[EpochPoint]:
    with closing(run_logger()) as log, ProgressBar(f"finetune {task}", training.loop.total_steps) as bar:
        watch = _Watch(bar, log)
        return training.run(watch, watch.epoch)


class _Watch(Callback):
    """Shows the training while it runs: the bar, the tracker, a line for each epoch."""

    def __init__(self, bar: ProgressBar, log: RunLogger) -> None:
        self._bar = bar
        self._log = log

    def on_point(self, point: CurvePoint) -> None:
        self._bar.advance(point.step - self._bar.done, note=f"loss {point.loss:.3f}")
        self._log.metrics({"loss": point.loss, "learning_rate": point.learning_rate}, step=point.step)

    def epoch(self, point: EpochPoint) -> None:
        self._bar.advance(point.step - self._bar.done)
        _LOG.info("epoch %d: validation score %.4f", point.epoch, point.validation_score)
        self._log.metrics({"validation_score": point.validation_score}, step=point.step)


def _write_csv(path: Path, header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    with replacing_file(path) as beside, beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
