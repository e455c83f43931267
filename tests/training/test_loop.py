from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from clozeline.system.errors import ArtifactError, TrainingError
from clozeline.training.checkpoints import Checkpoints
from clozeline.training.curves import CurvePoint, Quality, ValidationPass
from clozeline.training.distribution import Processes
from clozeline.training.loop import Loop, Validation
from clozeline.training.optimizers import build_optimizer
from clozeline.training.state import Batch, Callback, Scored
from clozeline.training.steps import Steps
from tests.training.prepared import OPTIMIZER, plain_hardware

BATCHES_PER_EPOCH = 7


def batches_from(epoch: int, index: int) -> Iterator[Batch[Tensor]]:
    """Points on a line; batch 3 of every epoch has no target."""
    while True:
        for place in range(index, BATCHES_PER_EPOCH):
            num_targets = 0 if place == 3 else 4
            inputs = torch.linspace(epoch, epoch + place, num_targets)
            yield Batch(epoch, place, inputs, num_tokens=8, num_targets=num_targets)
        epoch, index = epoch + 1, 0


def loop(work: Path, total_steps: int = 20) -> Loop[Tensor]:
    """A line fitted to y = 2x through dropout, so that the random state matters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def loss_sum(x: Tensor) -> Tensor:
        return ((model(x[:, None])[:, 0] - 2 * x) ** 2).sum()

    return Loop(
        model=model,
        optimizer=build_optimizer(model, OPTIMIZER),
        batches_from=batches_from,
        loss_sum=loss_sum,
        fraction_at=lambda step: 1 / (1 + step),
        total_steps=total_steps,
        params=OPTIMIZER,
        log_every_steps=5,
        checkpoint_every_steps=3,
        checkpoints=Checkpoints.of(work, "run", keep=2),
        hardware=plain_hardware(),
        seed=0,
    )


class Killed(BaseException):
    """Stands for a kill: nothing in the loop catches it."""


def weights(loop: Loop[Tensor]) -> list[bytes]:
    return [tensor.numpy().tobytes() for tensor in loop.model.state_dict().values()]


def run(loop: Loop[Tensor], callback: Callback | None = None) -> list[CurvePoint]:
    return loop.run(loop.resume(), callback or Callback()).curve


class Seen(Callback):
    """Keeps the points that it receives."""

    def __init__(self) -> None:
        self.points: list[CurvePoint] = []

    def on_point(self, point: CurvePoint) -> None:
        self.points.append(point)


@pytest.mark.parametrize("killed_after_batches", [1, 3, 4, 9, 16])
def test_a_killed_and_resumed_training_gives_the_bytes_of_an_uninterrupted_one(
    tmp_path: Path, killed_after_batches: int
) -> None:
    whole = loop(tmp_path / "whole")
    whole_curve = run(whole)

    dying = loop(tmp_path / "killed")
    inner = dying.loss_sum
    taken = 0

    def dies(x: Tensor) -> Tensor:
        nonlocal taken
        taken += 1
        if taken > killed_after_batches:
            raise Killed
        return inner(x)

    object.__setattr__(dying, "loss_sum", dies)
    with pytest.raises(Killed):
        run(dying)
    torch.manual_seed(123)  # a new process has another random state
    resumed = loop(tmp_path / "killed")
    assert run(resumed) == whole_curve
    assert weights(resumed) == weights(whole)


def test_a_batch_without_targets_changes_nothing_and_is_counted(tmp_path: Path) -> None:
    state = loop(tmp_path, total_steps=6).run(loop(tmp_path).resume(), Callback())
    assert state.num_empty_batches == 1
    assert state.step == 6
    assert state.num_targets == 6 * 4


def test_each_curve_point_is_the_mean_over_targets_since_the_last_one(tmp_path: Path) -> None:
    seen = Seen()
    training = loop(tmp_path, total_steps=12)
    losses: list[float] = []
    inner = training.loss_sum

    def remember(x: Tensor) -> Tensor:
        loss = inner(x)
        losses.append(loss.item())
        return loss

    object.__setattr__(training, "loss_sum", remember)
    run(training, seen)
    assert [point.step for point in seen.points] == [5, 10, 12]
    assert seen.points[0].loss == pytest.approx(sum(losses[:5]) / 20)
    assert seen.points[2].loss == pytest.approx(sum(losses[10:]) / 8)


def test_a_nan_loss_stops_with_step_and_batch(tmp_path: Path) -> None:
    training = loop(tmp_path)
    inner = training.loss_sum
    object.__setattr__(training, "loss_sum", lambda x: inner(x) * (float("nan") if x.max() > 5 else 1))
    with pytest.raises(TrainingError, match=r"step 5, on batch 6 of epoch 0"):
        run(training)


def test_the_gradient_is_clipped_to_the_norm(tmp_path: Path) -> None:
    training = loop(tmp_path, total_steps=1)
    norms: list[float] = []

    def validation(optimizer: torch.optim.Optimizer, *rest: object) -> None:
        gradients = [p.grad.flatten() for group in optimizer.param_groups for p in group["params"]]
        norms.append(torch.cat(gradients).norm().item())

    training.optimizer.register_step_pre_hook(validation)
    object.__setattr__(training, "loss_sum", lambda x, inner=training.loss_sum: 1e4 * inner(x))
    curve = run(training)
    assert norms[0] == pytest.approx(1.0, abs=1e-4)
    assert curve[0].gradient_norm > 100


@pytest.mark.parametrize("reads_each_step", [True, False])
def test_a_training_that_stops_before_its_first_curve_point_gets_one_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_each_step: bool
) -> None:
    """With losses read at each step, and with a processor that runs ahead."""
    take = Steps.take

    def taken(steps: Steps[Tensor], batch: Batch[Tensor], step: int) -> None:
        steps.must_read = reads_each_step
        take(steps, batch, step)

    monkeypatch.setattr(Steps, "take", taken)
    training = loop(tmp_path)
    losses = iter([1.0, 2.0, 3.0])
    object.__setattr__(
        training, "validation", Validation(every_steps=1, patience=1, measure=lambda: Quality(next(losses), 0.5))
    )
    curve = run(training)
    assert [point.step for point in curve] == [2]
    assert curve[0].loss > 0


def test_a_point_has_the_accuracy_over_all_targets_since_the_one_before_it(tmp_path: Path) -> None:
    """Each batch has 4 targets."""
    training = loop(tmp_path, total_steps=4)
    inner, num_right = training.loss_sum, iter([0, 1, 2, 2])
    object.__setattr__(training, "loss_sum", lambda x: Scored(inner(x), torch.tensor(next(num_right))))
    object.__setattr__(training, "log_every_steps", 3)
    assert [point.accuracy for point in run(training)] == [3 / 12, 2 / 4]
    assert run(loop(tmp_path / "other"))[0].accuracy is None, "a loss alone counts no right answers"


def test_a_validation_pass_without_a_finite_loss_is_never_the_best(tmp_path: Path) -> None:
    training = loop(tmp_path)
    losses = iter([float("nan"), 3.0, 1.0, 2.0, float("nan"), 4.0])
    object.__setattr__(
        training, "validation", Validation(every_steps=1, patience=3, measure=lambda: Quality(next(losses), 0.5))
    )
    state = training.run(training.resume(), Callback())
    assert (state.step, state.best_validation) == (6, ValidationPass(3, 1.0, 0.5))


def test_processes_that_see_different_checkpoints_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on machines with separate disks: one would resume, and wait for the others for ever."""
    training = loop(tmp_path)
    monkeypatch.setattr(Processes, "of_the_first", lambda processes, step: 12.0)
    with pytest.raises(ArtifactError, match=r"(?s)0 here, .* 12 in the first process.*share"):
        training.resume()


def test_a_training_without_any_target_stops_with_an_error(tmp_path: Path) -> None:
    training = loop(tmp_path)

    def silent(epoch: int, index: int) -> Iterator[Batch[Tensor]]:
        for place in range(5000):
            yield Batch(epoch + place, 0, torch.empty(0), num_tokens=8, num_targets=0)

    object.__setattr__(training, "batches_from", silent)
    with pytest.raises(TrainingError, match=r"(?s)1,001 batches.*epoch 1000.*mask_rate"):
        run(training)
