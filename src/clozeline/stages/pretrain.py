"""Stage `pretrain`: masked or causal language modelling, or replaced-token detection."""

import logging
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from clozeline.encoder.own import OwnModel
from clozeline.params.delivery import ExportParams
from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining import card, watching
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.job import Pretraining
from clozeline.records.record import MetricFile
from clozeline.system import files, progress
from clozeline.tracking.run_logger import RunLogger, run_logger
from clozeline.training.curves import CurvePoint, SpeedPoint, ValidationPass
from clozeline.training.state import Callback, State

_LOG = logging.getLogger(__name__)
_TRACKED = ("loss", "accuracy", "learning_rate", "gradient_norm", "tokens_per_second")


def run(
    params: PretrainParams,
    *,
    seed: int,
    tokens: Path,
    tokenizer: Path,
    out: Path,
    metrics: Path,
    curve: Path,
    validation: Path,
    timing: Path,
    work: Path,
    start: Path | None = None,
    export: ExportParams | None = None,
    before_first_step: Callable[[Pretraining], None] = lambda job: None,
    callbacks: Iterable[Callback] = (),
) -> None:
    """Train on the shards in `tokens`; write the model to `out` and its figures to `metrics`.

    `curve` gets loss and accuracy in training, `validation` those on held-out text, and `timing` tokens/s, which
    differs from run to run and is therefore no output of the stage. `work` holds the checkpoints while the training is
    not finished.
    `start`: folder of the encoder to continue from, with the keys of the documents that it was trained on.
    `export`: section of params.yaml; if it names models, your own encoder has to be exportable before it is trained.
    `before_first_step`: is called with the prepared training, in the first process only.
    `callbacks`: further listeners.

    Raises:
        ArtifactError: the shards are damaged, or a checkpoint belongs to another run.
        ParamsError: the params cannot be met here: the family, the precision, the length.
        TrainingError: the loss or the gradient is not finite, or memory ran out.
    """
    if start is not None:
        params = params.model_copy(update={"start": str(start)})
    job = pretraining.prepare(
        params, seed=seed, tokens=tokens, tokenizer=tokenizer, work=work, continues=start is not None
    )
    if isinstance(job.model, OwnModel) and export is not None and export.models:
        card.check_export(job.model, work)
    if not job.is_first_process:
        job.trained(tokenizer, job.run())
        return
    before_first_step(job)
    total = job.loop.total_steps
    _LOG.info("%s parameters, %s rows, %s steps", f"{job.num_parameters:,}", f"{job.num_rows:,}", f"{total:,}")
    if total == 0:
        _LOG.info("0 steps: the encoder is %s without further training", params.start)
    with closing(run_logger("pretrain")) as log, progress.ProgressBar("pretrain", total) as bar:
        watch = _Watch(bar, log)
        state = job.run([watch, *job.advisers(tokenizer), *callbacks])
    job.trained(tokenizer, state).save(out, card.card_of(job.params, seed, tokens, state, job.num_parameters))
    files.write_records(curve, CurvePoint, state.curve)
    files.write_records(validation, ValidationPass, state.validations)
    files.write_records(timing, SpeedPoint, (SpeedPoint(*speed) for speed in watch.speeds))
    MetricFile.model_validate(_figures(job, state)).write(metrics)
    job.loop.checkpoints.remove()


def _figures(job: Pretraining, state: State) -> dict[str, int | float | None]:
    best = state.best_validation
    return {
        "parameters": job.num_parameters,
        "steps": state.step,
        "epochs": state.epoch,
        "world_size_at_start": state.world_sizes[0],
        "world_size_at_end": state.world_sizes[-1],
        "tokens": state.num_tokens,
        "target_tokens": state.num_targets,
        "batches_without_target": state.num_empty_batches,
        "rows_without_target": state.num_rows_without_target,
        "last_training_loss_nats_per_token": state.curve[-1].loss if state.curve else None,
        "last_training_accuracy": state.curve[-1].accuracy if state.curve else None,
        "best_validation_loss_nats_per_token": best.loss if best else None,
        "best_validation_accuracy": best.accuracy if best else None,
        "best_validation_step": best.step if best else None,
        **({"new_rows": job.replay.num_new_rows, "old_rows": job.replay.num_old_rows} if job.replay else {}),
    }


class _Watch(watching.Advancing):
    """Shows the training while it runs: the bar, the tracker, the speed."""

    def __init__(self, bar: progress.ProgressBar, log: RunLogger) -> None:
        super().__init__(bar)
        self._log = log

    def on_point(self, point: CurvePoint) -> None:
        super().on_point(point)
        values = asdict(point) | {"tokens_per_second": self.speeds[-1][1]}
        self._log.metrics({name: values[name] for name in _TRACKED}, step=point.step)

    def on_validation(self, validation: ValidationPass) -> None:
        _LOG.info(
            "step %s: validation loss %.3f nats per target, accuracy %.1f %%",
            *(f"{validation.step:,}", validation.loss, 100 * validation.accuracy),
        )
        figures = {"validation_loss": validation.loss, "validation_accuracy": validation.accuracy}
        self._log.metrics(figures, step=validation.step)
