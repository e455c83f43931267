"""Stage `finetune`: train the encoder for one labelled task, and compare it with a baseline on the test split."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from clozeline.params.tasks import FinetuneParams
from clozeline.records.clean_text import texts_of
from clozeline.records.finetune import task_metrics
from clozeline.records.words.shingles import Contamination, contamination, in_batches
from clozeline.system.files import replacing_folder, write_csv, write_records
from clozeline.system.group import Group
from clozeline.system.progress import ProgressBar
from clozeline.tasks.kinds import CARD, Finished, Watched, card_of, is_better, over_seeds, train_each, train_one
from clozeline.tasks.report import TaskReport
from clozeline.tasks.selection import at_commit, hub_commit
from clozeline.tasks.task import TaskInputs
from clozeline.tasks.training import BestRate, TrainingOutcome, are_alike, best_of, use_threads
from clozeline.tracking.run_logger import RunLogger, run_logger
from clozeline.training import curves, state

_LOG = logging.getLogger(__name__)
# Columns of an empty table, which dvc.yaml plots.
_NO_COLUMNS = ("f1",)


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
    curve: Path,
    validation: Path,
    confusion: Path,
    classes: Path,
    examples: Path,
    work: Path,
    family: str | None = None,
    only_seed: int | None = None,
) -> None:
    """Train `task` on `data` from each of its seeds; write the best model to `out`, its figures to `metrics`.

    The training loss of the kept model goes to `curve` and its validation scores to `validation`, both as CSV. Every
    test answer goes to `confusion` and the figures of each class to `classes`, both as CSV (without rows for kinds that
    have none). Some test items go to `examples`, in readable form. Of several processes, the first one writes.

    `pretraining_text` is read only to count test texts that the encoder has seen; `work` holds the checkpoints of an
    unfinished training. `family`: `pretrain.model.family`, which opens your own encoder. With `only_seed`, one of the
    seeds is trained and nothing written but its checkpoint: a later call goes on from it.

    Raises:
        ArtifactError: the encoder is damaged, or a checkpoint belongs to another run.
        DataError: the data cannot be read, or are too few.
        TransientError: the hub, which holds the data, did not answer.
        ParamsError: `max_length` is longer than the encoder can read, or a knob does not apply to the encoder.
        TrainingError: the loss or the gradient is not finite.
    """
    use_threads(params.num_threads)
    commit = Group.join().of_the_first(hub_commit(params))
    inputs = TaskInputs(at_commit(params, commit), seed, encoder, data, pretraining_text, family)
    watch = partial(watched, task, params.num_seeds)
    if only_seed is not None:
        train_one(inputs, only_seed, work / task, watch)
        return
    kept, values, forget = _train(inputs, work / task, watch)
    if kept is None:  # the first process has it
        return
    in_train = contamination(kept.report.test_rows, in_batches(kept.report.train_rows))
    kept = replace(kept, report=_without_near_duplicates(kept.report, in_train))
    seen = _contamination(kept.report, in_train, pretraining_text, task)
    found = _metrics(kept, values, {**seen, "hub_commit": commit})
    with replacing_folder(out) as folder:
        kept.task.save(folder)
        card_of(task, inputs, found).save(folder / CARD)
    write_records(curve, curves.CurvePoint, kept.trained.curve)
    write_records(validation, task_metrics.ValidationScore, kept.trained.validations)
    _write_tables(kept.report, confusion, classes, examples)
    found.write(metrics)
    for forget_seed in forget:
        forget_seed()
    _log_headline(task, kept.report)


def _train(
    inputs: TaskInputs, work: Path, watch: Watched
) -> tuple[Finished | None, Sequence[float], Sequence[Callable[[], None]]]:
    """Return the best training, the figure of each seed, and functions that remove the checkpoints."""
    kept, values, forget = None, [], []
    for finished in train_each(inputs, work, watch):
        values.append(finished.report.headline.value)
        forget.append(finished.forget)
        kept = finished if is_better(finished, kept) else kept
    return kept, values, forget


def _log_headline(task: str, report: TaskReport) -> None:
    """Log the headline beside its baselines, and warn of its faults."""
    top = report.headline
    beside = ", ".join(f"{name} {value:.3f}" for name, value in top.compared)
    interval = f"95 %: {top.low:.3f} to {top.high:.3f}"
    _LOG.info("%s: on the test split %s %.3f (%s); beside it %s", task, top.metric, top.value, interval, beside)
    if behind := top.unbeaten:
        named = ", ".join(f"{name} ({value:.3f})" for name, value in behind)
        _LOG.warning("%s: %s %.3f is no better than %s", task, top.metric, top.judged.value, named)
    if report.only_answer is not None:
        _LOG.warning("%s: the model answers `%s` to every item of the test split", task, report.only_answer)


def _without_near_duplicates(report: TaskReport, in_train: Contamination) -> TaskReport:
    """Return the report whose headline has its figure on test items that are no near-duplicates of training items."""
    others = sorted({*range(in_train.num_texts)}.difference(in_train.place_of_near))
    if report.headline_on is None or not others or not in_train.place_of_near:
        return report
    beside = report.headline_on(others)
    return replace(report, headline=report.headline.model_copy(update={"without_near_duplicates": beside}))


def _contamination(
    report: TaskReport, in_train: Contamination, pretraining_text: Path, task: str
) -> dict[str, int | float]:
    if not report.test_texts:
        return {}
    found = contamination(report.test_texts, texts_of(pretraining_text))
    _LOG.info(
        "%s: compared with the pre-training text, of the %s texts of %s test items %s",
        *(task, f"{found.num_texts:,}", f"{report.figures['num_test']:,}", found),
    )
    num_rows = f"{in_train.num_texts:,}"
    _LOG.info("%s: compared with the task's training text, of %s test rows %s", task, num_rows, in_train)
    return {
        "contaminated_fraction": found.fraction,
        "num_test_near_duplicates_in_pretraining": found.num_near_duplicates,
        "num_test_contained_in_pretraining": found.num_contained,
        "num_test_near_duplicates_in_train": in_train.num_near_duplicates,
        "num_test_contained_in_train": in_train.num_contained,
    }


def watched(task: str, num_seeds: int, rates: BestRate, seed: int) -> TrainingOutcome:
    training = rates.chosen()
    if not training.loop.hardware.processes.is_first:
        return training.run(state.Callback(), lambda validation: None)
    name = f"finetune {task}" if num_seeds == 1 else f"finetune {task}, seed {seed}"
    with closing(run_logger(name)) as log, ProgressBar(name, training.loop.total_steps) as bar:
        watch = _Watch(bar, log, prefix="" if num_seeds == 1 else f"seed_{seed}.")
        trained = training.run(watch, watch.validated)
    _log_kept_epoch(name, trained.validations)
    return trained


def _log_kept_epoch(name: str, validations: Sequence[task_metrics.ValidationScore]) -> None:
    kept = best_of(validations)
    if are_alike(validations):
        _LOG.warning(
            "%s: the validation score is %.4f at all %d validation passes, so the last weights are kept",
            *(name, kept.validation_score, len(validations)),
        )
    elif len(validations) > 1 and kept.step == 0:
        _LOG.info("%s: no epoch is better than the fitted head on the frozen encoder, which is kept", name)
    elif len(validations) > 1:
        _LOG.info("%s: epoch %g is kept, validation score %.4f", name, kept.epoch, kept.validation_score)


def _metrics(kept: Finished, values: Sequence[float], beside: Mapping[str, object]) -> task_metrics.TaskMetrics:
    epoch, score, report = kept.trained.best.epoch, kept.trained.best.validation_score, kept.report
    known = {
        "headline": report.headline,
        "learning_rate": kept.trained.learning_rate,
        "rate_scores": {str(rate): score for rate, score in kept.trained.score_at_rate.items()} or None,
        "best_epoch": int(epoch) if epoch.is_integer() else epoch,
        "validation_score": score if math.isfinite(score) else None,
        "over_seeds": over_seeds(kept.seed, values) if len(values) > 1 else None,
        "only_answer": report.only_answer,
        "first_places": dict(report.first_places) or None,
    }
    return task_metrics.TaskMetrics.model_validate({**known, **report.figures, **beside})


def _write_tables(report: TaskReport, confusion: Path, classes: Path, examples: Path) -> None:
    write_records(confusion, task_metrics.AnswerRow, (task_metrics.AnswerRow(*answer) for answer in report.confusion))
    columns = tuple(next(iter(report.per_class.values()), _NO_COLUMNS))
    rows = ((label, *(repr(of_class[name]) for name in columns)) for label, of_class in report.per_class.items())
    write_csv(classes, (task_metrics.CLASS, *columns), rows)
    with replacing_folder(examples) as folder:
        task_metrics.write_shown_items(folder, report.examples)


class _Watch(state.Callback):
    """Shows the training while it runs: the bar, the tracker, a line for each validation pass."""

    def __init__(self, bar: ProgressBar, log: RunLogger, prefix: str) -> None:
        """`prefix` goes before the names of the tracker's figures, to tell several training runs apart."""
        self._bar = bar
        self._log = log
        self._prefix = prefix

    def on_point(self, point: curves.CurvePoint) -> None:
        self._bar.advance(point.step - self._bar.done, note=f"loss {point.loss:.3f}")
        self._tell({"loss": point.loss, "learning_rate": point.learning_rate}, point.step)

    def validated(self, validation: task_metrics.ValidationScore) -> None:
        self._bar.advance(validation.step - self._bar.done)
        after = f"epoch {validation.epoch:g}" if validation.step else "before training"
        _LOG.info("%s: validation score %.4f", after, validation.validation_score)
        self._tell({"validation_score": validation.validation_score}, validation.step)

    def _tell(self, figures: Mapping[str, float], step: int) -> None:
        self._log.metrics({f"{self._prefix}{name}": value for name, value in figures.items()}, step=step)
