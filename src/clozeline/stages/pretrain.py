"""Pre-trains the encoder by masked language modelling."""

import csv
import json
import logging
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import astuple, fields
from pathlib import Path

from clozeline.atomic import replacing_file, replacing_folder
from clozeline.model import language_model
from clozeline.params import PretrainParams
from clozeline.progress import ProgressBar
from clozeline.tracking import RunLogger, run_logger
from clozeline.training import pretraining
from clozeline.training.loop import CurvePoint

_LOG = logging.getLogger(__name__)


def run(
    params: PretrainParams,
    *,
    seed: int,
    tokens: Path,
    tokenizer: Path,
    out: Path,
    metrics: Path,
    curve: Path,
    timing: Path,
    work: Path,
) -> None:
    """Train on the shards in `tokens`; write the model to `out`, its figures to `metrics`, its loss to `curve`.

    `timing` gets tokens/s, which differs from run to run and is therefore no output of the stage;
    `work` holds the checkpoints while the training is not finished.

    Raises:
        ArtifactError: the shards are damaged, or a checkpoint belongs to another run.
        TrainingError: the loss or the gradient is not finite.
    """
    job = pretraining.prepare(params, seed=seed, tokens=tokens, work=work)
    total = job.loop.total_steps
    _LOG.info("%s parameters, %s rows, %s steps", f"{job.num_parameters:,}", f"{job.num_rows:,}", f"{total:,}")
    state = job.loop.resume()
    if state.step:
        _LOG.info("resumed at step %s", f"{state.step:,}")
    with closing(run_logger()) as log, ProgressBar("pretrain", total, done=state.step) as bar:
        watch = _Watch(bar, log, state.num_tokens)
        state = job.loop.run(state, watch.point)
    with replacing_folder(out) as folder:
        language_model.save(job.model, tokenizer, folder)
    _write_csv(curve, [field.name for field in fields(CurvePoint)], (astuple(point) for point in state.curve))
    _write_csv(timing, ["step", "tokens_per_second"], watch.speeds)
    with replacing_file(metrics) as file:
        facts = {
            "parameters": job.num_parameters,
            "steps": state.step,
            "epochs": state.epoch,
            "tokens": state.num_tokens,
            "target_tokens": state.num_targets,
            "batches_without_target": state.num_empty_batches,
            "last_training_loss_nats_per_token": state.curve[-1].loss,
        }
        file.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    job.loop.checkpoints.remove()


class _Watch:
    """Shows each point of the curve while the training runs: the bar, the tracker, the speed."""

    def __init__(self, bar: ProgressBar, log: RunLogger, num_tokens: int) -> None:
        self._bar = bar
        self._log = log
        self._seconds = time.monotonic()
        self._num_tokens = num_tokens
        self.speeds: list[tuple[int, float]] = []
        """(step, real tokens per second since the point before)"""

    def point(self, point: CurvePoint) -> None:
        now = time.monotonic()
        speed = (point.num_tokens - self._num_tokens) / (now - self._seconds)
        self._seconds, self._num_tokens = now, point.num_tokens
        self.speeds.append((point.step, speed))
        self._bar.advance(point.step - self._bar.done, note=f"loss {point.loss:.3f}, {speed:,.0f} tokens/s")
        values = {"loss": point.loss, "learning_rate": point.learning_rate, "tokens_per_second": speed}
        self._log.metrics(values, step=point.step)


def _write_csv(path: Path, header: list[str], rows: Iterable[tuple[object, ...]]) -> None:
    with replacing_file(path) as beside, beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
