"""Training of a task: optimizer, schedule, validation at fixed steps, and checkpoints that match exactly this run.

It can resume between two validation passes, and keeps the best weights. Of a small grid of learning rates each trains
up to its first validation pass, and the best one goes on. Of several processes each computes its share of the rows of
every batch.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clozeline.encoder.own import sources_of
from clozeline.records.finetune.task_metrics import ValidationScore
from clozeline.system import errors, files, group, progress
from clozeline.tasks import adapters
from clozeline.tasks.task import Task, TaskInputs
from clozeline.training.checkpoints import Checkpoints
from clozeline.training.curves import CurvePoint
from clozeline.training.distribution import Processes
from clozeline.training.loop import Loop
from clozeline.training.micro_batches import Hardware, MicroBatches, Precision, share_of
from clozeline.training.optimizers import Schedule, build_optimizer
from clozeline.training.state import Batch, Callback, State

_LOG = logging.getLogger(__name__)
# Lead in the validation score that is hardly chance: the standard error of a share is 0.035 with 200 items.
CLEARLY = 0.05
# Folders and files of the package that decide the result; dvc.yaml names the same as dependencies of the stage.
CODE = ("encoder", "records/finetune", "records/reading", "records/words", "tasks", "tokenizing/tokenizer", "training")
_LOG_EVERY_STEPS = 10
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class TrainingOutcome:
    """Validation scores and curve of one training run, with the steps before it was resumed.

    `learning_rate` is None if nothing was trained. `score_at_rate` maps a learning rate to the score of its first
    validation pass, NaN if it diverged; it is empty if one rate was tried.
    """

    validations: list[ValidationScore]
    curve: list[CurvePoint]
    learning_rate: float | None
    score_at_rate: Mapping[float, float]

    @property
    def best(self) -> ValidationScore:
        """Validation pass whose weights are kept."""
        return best_of(self.validations)


@dataclass(frozen=True)
class ValidationPlan:
    """Steps of validation passes and checkpoints, counted in optimizer steps from the start.

    Training stops after `patience` validation passes without a better score; None: never.
    """

    steps_per_epoch: int
    num_epochs: int
    validations_per_epoch: int
    checkpoint_every_steps: int | None
    patience: int | None

    @property
    def total_steps(self) -> int:
        return self.num_epochs * self.steps_per_epoch

    @property
    def validation_steps(self) -> list[int]:
        """Steps with a validation pass: evenly spaced, with one at the end of each epoch."""
        num_validations = self.num_epochs * self.validations_per_epoch
        steps = {-(-place * self.total_steps // num_validations) for place in range(1, num_validations + 1)}
        return sorted(steps)

    @property
    def stops(self) -> list[int]:
        """Steps with a validation pass or a checkpoint."""
        every = self.checkpoint_every_steps or self.total_steps
        return sorted({*self.validation_steps, *range(every, self.total_steps, every)})


@dataclass(frozen=True)
class BestValidation:
    """A training loop that runs from stop to stop and ends with the weights of the best validation pass."""

    loop: Loop[Any]
    plan: ValidationPlan
    validation_score: Callable[[], float]
    # Of the first group of weights, after warm-up.
    learning_rate: float
    # As in `TrainingOutcome`.
    score_at_rate: Mapping[float, float] = field(default_factory=dict)
    # Whether the weights before the first step are validated too, and kept if no later ones are better.
    validates_start: bool = False

    def run(self, callback: Callback, on_validation: Callable[[ValidationScore], None]) -> TrainingOutcome:
        """Train from the newest checkpoint, or from the start. A resumed run ends with the same bytes.

        Raises:
            ArtifactError: a checkpoint belongs to another run.
            TrainingError: the loss or the gradient is not finite.
        """
        if self.plan.total_steps == 0:  # zero-shot tasks do not train
            only = ValidationScore(0, 0.0, self.validation_score())
            on_validation(only)
            return TrainingOutcome([only], [], None, {})
        return self._run(self.plan.stops, callback, on_validation)

    def trial(self, callback: Callback) -> float:
        """Train up to the first validation pass, as `run` does, and return its score. `run` goes on from there."""
        first = self.plan.validation_steps[0]
        trained = self._run([stop for stop in self.plan.stops if stop <= first], callback, lambda it: None)
        return next(it.validation_score for it in trained.validations if it.step == first)

    def _run(
        self, stops: Sequence[int], callback: Callback, on_validation: Callable[[ValidationScore], None]
    ) -> TrainingOutcome:
        state, validations, best_weights = self._resume()
        for validation in validations:
            on_validation(validation)
        validation_steps = set(self.plan.validation_steps)
        for stop in [stop for stop in stops if stop > state.step]:
            if self._has_lost_patience(validations):
                break
            state = replace(self.loop, total_steps=stop).run(state, callback)
            if stop in validation_steps:
                validations.append(ValidationScore(stop, stop / self.plan.steps_per_epoch, self.validation_score()))
                on_validation(validations[-1])
                if best_weights is None or best_of(validations) is validations[-1]:
                    best_weights = _copy_of_weights(self.loop.model)
            records = [asdict(validation) for validation in validations]
            self.loop.save(state, validations=records, validation_best=best_weights)
        assert best_weights is not None
        self.loop.model.load_state_dict(best_weights)
        return TrainingOutcome(validations, state.curve, self.learning_rate, self.score_at_rate)

    def _has_lost_patience(self, validations: Sequence[ValidationScore]) -> bool:
        if self.plan.patience is None or not validations:
            return False
        ranks = [_rank(it.validation_score) for it in validations]
        return len(ranks) - 1 - ranks.index(max(ranks)) >= self.plan.patience

    def _resume(self) -> tuple[State, list[ValidationScore], Weights | None]:
        saved = self.loop.newest()
        if saved is None:
            validations = [ValidationScore(0, 0.0, self.validation_score())] if self.validates_start else []
            return State(), validations, _copy_of_weights(self.loop.model) if validations else None
        validations = [ValidationScore(**validation) for validation in saved["validations"]]
        return self.loop.restore(saved), validations, saved["validation_best"]


def _copy_of_weights(model: nn.Module) -> Weights:
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def best_of(validations: Sequence[ValidationScore]) -> ValidationScore:
    """Return the first validation pass with the highest score; NaN loses to any number. If the first passes
    have equal scores, only the last of them counts, because it trained longest.
    """
    ranks = [_rank(it.validation_score) for it in validations]
    num_alike = next((place for place, rank in enumerate(ranks) if rank != ranks[0]), len(ranks))
    return validations[ranks.index(max(ranks), num_alike - 1)]


def are_alike(validations: Sequence[ValidationScore]) -> bool:
    """Return whether there are several validation passes, all with the same score."""
    return len(validations) > 1 and len({_rank(it.validation_score) for it in validations}) == 1


def _rank(score: float) -> float:
    return -math.inf if math.isnan(score) else score


@dataclass(frozen=True)
class BestRate:
    """Trainings of one model that differ in their learning rate alone."""

    trainings: Sequence[BestValidation]
    # Folder of their checkpoints, in that of all seeds.
    folder: Path

    @property
    def loop(self) -> Loop[Any]:
        return self.trainings[0].loop

    def chosen(self) -> BestValidation:
        """Return the training with the best first validation pass, which `run` continues from there.

        Each is the same as if it were the only one, and none of its steps is done twice. The first is chosen unless
        another one is better by more than `CLEARLY`. A rate at which the training diverges loses, unless it is the
        first.

        Raises:
            TrainingError: the training at the first rate diverges.
        """
        if len(self.trainings) == 1 or not self.loop.total_steps:
            return self.trainings[0]
        scaler = self.loop.hardware.precision.scaler
        start = _copy_of_weights(self.loop.model)
        scale = scaler.state_dict()
        scores: dict[float, float] = {}
        for training in self.trainings:
            self.loop.model.load_state_dict(start)
            scaler.load_state_dict(scale)
            scores[training.learning_rate] = self._score(training)
        self.loop.model.load_state_dict(start)
        best = max(self.trainings, key=lambda training: _rank(scores[training.learning_rate]))
        if _rank(scores[best.learning_rate]) - _rank(scores[self.trainings[0].learning_rate]) <= CLEARLY:
            best = self.trainings[0]
        words = ", ".join(f"{score:.4f} at {rate}" for rate, score in scores.items())
        _LOG.info("learning rate %s is kept: %s after the first validation pass", best.learning_rate, words)
        return replace(best, score_at_rate=scores)

    def forget(self) -> None:
        """Remove the checkpoints, once the result is saved."""
        files.remove_folder(self.folder)
        with suppress(OSError):  # other seeds are not done
            self.folder.parent.rmdir()

    def _score(self, training: BestValidation) -> float:
        name = f"learning rate {training.learning_rate}"
        shown = self.loop.hardware.processes.is_first
        try:
            with progress.ProgressBar(name, training.plan.validation_steps[0]) as bar:
                return training.trial(_Shown(bar) if shown else Callback())
        except errors.TrainingError as error:
            if training is self.trainings[0]:
                raise
            _LOG.warning("%s is not used: %s", name, error.problem)
            return math.nan
        finally:
            training.loop.optimizer.zero_grad()  # one that diverges leaves gradients
            training.loop.optimizer.state.clear()  # `run` reads it from the checkpoint


class _Shown(Callback):
    def __init__(self, bar: progress.ProgressBar) -> None:
        self._bar = bar

    def on_point(self, point: CurvePoint) -> None:
        self._bar.advance(point.step - self._bar.done, note=f"loss {point.loss:.3f}")


class LossOfShare(nn.Module):
    """Loss of a task, summed over the targets of a share, as a module that sums its gradients over all processes."""

    def __init__(self, task: Task[Any]) -> None:
        super().__init__()
        self.model = task.model
        self._task = task

    def forward(self, share: Any) -> Tensor:
        return self._task.loss_sum(share) * float(share.counts)


def shared(
    task: Task[Any], processes: Processes
) -> tuple[Callable[[int, int], Iterator[Batch[Any]]], Callable[[Any], Tensor]]:
    """Return `batches_from` and `loss_sum` for one of `processes`: the task's own if it is alone."""
    if processes.world_size == 1:
        return task.batches_from, task.loss_sum

    def batches_from(epoch: int, index: int) -> Iterator[Batch[Any]]:
        for batch in task.batches_from(epoch, index):
            own, rows_short = share_of(batch.inputs, processes.rank, processes.world_size)
            yield replace(batch, inputs=own, rows_short=rows_short)

    def smallest() -> Any:
        return next(task.batches_from(0, 0)).inputs.rows(0, 1)

    return batches_from, processes.wrap(LossOfShare(task), smallest)


def use_threads(num_threads: int | None) -> None:
    """Set the number of torch threads; None means every core this process may use, or its share of them."""
    torch.set_num_threads(num_threads or group.Group.join().num_threads)


def prepare_training(task: Task[Any], inputs: TaskInputs, work: Path) -> BestRate:
    """Return the training of a task at each learning rate: warm-up and linear decay to zero (Devlin et al. 2018,
    appendix A.2), with a checkpoint at each validation pass.

    Raises:
        ParamsError: `frozen_layers` exceeds the encoder's layers, or the processor does not support the precision.
    """
    params = inputs.params
    plan = ValidationPlan(
        *(task.batches_per_epoch, params.epochs, params.validations_per_epoch),
        checkpoint_every_steps=params.checkpoint_every_steps,
        patience=params.patience,
    )
    schedule = Schedule.linear_to_zero(params.warmup_fraction, plan.total_steps)
    # Each process has the whole model: those of tasks fit on one device.
    processes = replace(Processes.join(), sharding="ddp")
    precision = Precision.choose(params.precision, processes.device)
    hardware: Hardware[Any] = Hardware(processes, precision, MicroBatches.of(params, processes.device))
    _select_trained_weights(task, inputs)
    task.model.to(precision.device)
    is_fitted = plan.total_steps > 0 and task.fitted is not None
    if is_fitted:
        task.fit_head()
    name = group.agreed(processes, work, _fingerprint(inputs, precision, sources_of(task.model)))
    batches_from, loss_sum = shared(task, processes if plan.total_steps else Processes.alone())
    rate_of = None if params.layer_decay == 1 else adapters.rate_by_depth(task.model, params.layer_decay)
    of_seed = f"seed-{inputs.seed}"

    def validation_score() -> float:
        return processes.of_the_first(task.validation_score())

    def at(factor: float) -> BestValidation:
        optimizer = params.optimizer.times(factor)
        loop = Loop(
            model=task.model,
            optimizer=build_optimizer(task.model, optimizer, rate_of),
            batches_from=batches_from,
            loss_sum=loss_sum,
            fraction_at=schedule.fraction,
            total_steps=plan.total_steps,
            params=optimizer,
            log_every_steps=_LOG_EVERY_STEPS,
            # `BestValidation` saves checkpoints, because they include the best weights; the loop saves none.
            checkpoint_every_steps=plan.total_steps + 1,
            checkpoints=Checkpoints.of(work, name, keep=1, part=f"{of_seed}/rate-{optimizer.learning_rate}"),
            hardware=hardware,
            seed=inputs.seed,
        )
        return BestValidation(loop, plan, validation_score, optimizer.learning_rate, validates_start=is_fitted)

    return BestRate([at(factor) for factor in params.rate_factors], work / name / of_seed)


def _select_trained_weights(task: Task[Any], inputs: TaskInputs) -> None:
    """Freeze layers or add adapters, and narrow the embedding, which `adapters.widen` restores."""
    model: Any = task.model
    if inputs.params.lora is not None:
        adapters.add(model, inputs.params.lora, inputs.seed)
    elif inputs.params.frozen_layers is not None:
        adapters.freeze(model, inputs.params.frozen_layers)
    adapters.narrow(model, (ids for rows in task.trained_on for ids in rows.ids_T))


def _fingerprint(inputs: TaskInputs, precision: Precision, own_code: Sequence[Path]) -> str:
    encoder = sorted(file for file in inputs.encoder.iterdir() if file.is_file())
    facts = {
        "params": inputs.params.model_dump(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "device": precision.device.type,
        "precision": precision.name,
        "num_threads": torch.get_num_threads() if precision.device.type == "cpu" else None,
    }
    return files.fingerprint(facts, [*files_of(inputs.data), *encoder, *files.code_of(CODE), *own_code])


def files_of(data: Path) -> list[Path]:
    """Return the files of a task's `data`, which is a file or a folder."""
    return sorted(file for file in data.rglob("*") if file.is_file()) if data.is_dir() else [data]
