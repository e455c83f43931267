"""A training loop calls its callbacks, counts, stops where it has to; a stuck training is reported."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from clozeline.language.objectives import Split, unigram_entropy
from clozeline.language.shards import TokenShards
from clozeline.params.pretraining import PretrainParams
from clozeline.system.errors import ArtifactError, TrainingError
from clozeline.training.checkpoints import Checkpoints
from clozeline.training.curves import CurvePoint, Quality, ValidationPass
from clozeline.training.distribution import Processes
from clozeline.training.loop import Loop, Validation
from clozeline.training.micro_batches import Precision
from clozeline.training.optimizers import build_optimizer
from clozeline.training.state import Batch, Callback, Callbacks, PlateauWarning, Scored, State
from tests.training.prepared import CPU, Killed, KillsAt, largest_difference, plain_hardware, weights_of

BATCHES_PER_EPOCH = 7

MakeLoop = Callable[..., Loop[Tensor]]


def batches_from(epoch: int, index: int) -> Iterator[Batch[Tensor]]:
    """Points on a line; batch 3 of every epoch has no target."""
    while True:
        for place in range(index, BATCHES_PER_EPOCH):
            num_targets = 0 if place == 3 else 4
            inputs = torch.linspace(epoch, epoch + place, num_targets)
            yield Batch(epoch, place, inputs, num_tokens=8, num_targets=num_targets)
        epoch, index = epoch + 1, 0


@pytest.fixture
def loop(tmp_path: Path, tiny_pretraining: PretrainParams) -> MakeLoop:
    """`loop(change_loss, **fields)`: a line to be fitted to y = 2x, whose summed loss goes through `change_loss`."""
    optimizer = tiny_pretraining.optimizer.model_copy(update={"learning_rate": 0.1, "weight_decay": 0.0})

    def loop(change_loss: Callable[[Tensor, Tensor], object] = lambda loss, x: loss, **fields: object) -> Loop[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 8), nn.Linear(8, 1))
        made = {
            "model": model,
            "optimizer": build_optimizer(model, optimizer),
            "batches_from": batches_from,
            "loss_sum": lambda x: change_loss(((model(x[:, None])[:, 0] - 2 * x) ** 2).sum(), x),
            "fraction_at": lambda step: 1 / (1 + step),
            "total_steps": 20,
            "params": optimizer,
            "log_every_steps": 5,
            "checkpoint_every_steps": 3,
            "checkpoints": Checkpoints.of(tmp_path, "run", keep=2),
            "hardware": plain_hardware(),
            "seed": 0,
        }
        return Loop(**made | fields)

    return loop


def run(loop: Loop[Tensor], callback: Callback | None = None) -> State:
    return loop.run(loop.resume(), callback or Callback())


def validation(losses: Sequence[float], patience: int | None) -> Validation:
    """A validation pass at each step, with these losses."""
    remaining = iter(losses)
    return Validation(every_steps=1, patience=patience, measure=lambda: Quality(next(remaining), 0.5))


class Heard(Callback):
    def __init__(self) -> None:
        self.all: list[tuple[str, int]] = []

    def on_start(self, state: State) -> None:
        self.all.append(("start", state.step))

    def on_point(self, point: CurvePoint) -> None:
        self.all.append(("point", point.step))

    def on_validation(self, validation: ValidationPass) -> None:
        self.all.append(("validation", validation.step))

    def on_end(self, state: State) -> None:
        self.all.append(("end", state.step))


def test_every_callback_receives_start_points_validation_passes_and_end_in_order(loop: MakeLoop) -> None:
    first, second = Heard(), Heard()
    run(loop(validation=validation([3.0, 2.0], None), total_steps=2), Callbacks((first, Callback(), second)))
    passes = [("validation", 1), ("point", 2), ("validation", 2)]
    assert first.all == second.all == [("start", 0), *passes, ("end", 2)]


def test_a_batch_without_targets_changes_nothing_and_is_counted(loop: MakeLoop) -> None:
    state = run(loop(total_steps=6))
    assert (state.num_empty_batches, state.step, state.num_targets) == (1, 6, 6 * 4)


def test_each_curve_point_is_the_mean_over_targets_since_the_last_one(loop: MakeLoop) -> None:
    losses: list[float] = []
    curve = run(loop(lambda loss, x: losses.append(loss.item()) or loss, total_steps=12)).curve
    assert [point.step for point in curve] == [5, 10, 12]
    assert curve[0].loss == pytest.approx(sum(losses[:5]) / 20)
    assert curve[2].loss == pytest.approx(sum(losses[10:]) / 8)
    assert curve[0].accuracy is None, "a loss alone counts no right answers"


def test_a_point_has_the_accuracy_over_all_targets_since_the_one_before_it(loop: MakeLoop) -> None:
    """Each batch has 4 targets."""
    num_right = iter([0, 1, 2, 2])
    made = loop(lambda loss, x: Scored(loss, torch.tensor(next(num_right))), total_steps=4, log_every_steps=3)
    assert [point.accuracy for point in run(made).curve] == [3 / 12, 2 / 4]


def test_a_resumed_fp16_training_equals_a_whole_one(loop: MakeLoop, tmp_path: Path) -> None:
    """P29: a checkpoint holds the scale of gradients, which falls when they overflow."""

    def made(folder: str) -> Loop[Tensor]:
        halves = replace(plain_hardware(), precision=Precision.of("fp16", CPU))
        return loop(hardware=halves, checkpoints=Checkpoints.of(tmp_path / folder, "run", keep=2))

    whole, killed, resumed = made("whole"), made("killed"), made("killed")
    run(whole)
    with pytest.raises(Killed):
        run(killed, KillsAt(10))
    run(resumed)
    scale, scale_of_resumed = (it.hardware.precision.scaler.get_scale() for it in (whole, resumed))
    assert scale_of_resumed == scale < 2**16
    assert largest_difference(weights_of(whole.model), weights_of(resumed.model)) == 0.0


def test_a_nan_loss_stops_with_step_and_batch(loop: MakeLoop) -> None:
    with pytest.raises(TrainingError, match=r"step 5, on batch 6 of epoch 0"):
        run(loop(lambda loss, x: loss * (float("nan") if x.max() > 5 else 1)))


def test_the_gradient_is_clipped_to_the_norm(loop: MakeLoop) -> None:
    made = loop(lambda loss, x: 1e4 * loss, total_steps=1)
    norms: list[float] = []

    def note(optimizer: torch.optim.Optimizer, *rest: object) -> None:
        gradients = [weight.grad.flatten() for group in optimizer.param_groups for weight in group["params"]]
        norms.append(torch.cat(gradients).norm().item())

    made.optimizer.register_step_pre_hook(note)
    curve = run(made).curve
    assert norms[0] == pytest.approx(1.0, abs=1e-4)
    assert curve[0].gradient_norm > 100


def test_a_training_that_stops_before_its_first_curve_point_gets_one_at_the_end(loop: MakeLoop) -> None:
    curve = run(loop(validation=validation([1.0, 2.0, 3.0], patience=1))).curve
    assert [point.step for point in curve] == [2]
    assert curve[0].loss > 0


def test_a_validation_pass_without_a_finite_loss_is_never_the_best(loop: MakeLoop) -> None:
    nan = float("nan")
    state = run(loop(validation=validation([nan, 3.0, 1.0, 2.0, nan, 4.0], patience=3)))
    assert (state.step, state.best_validation) == (6, ValidationPass(3, 1.0, 0.5))


def test_processes_that_see_different_checkpoints_are_refused(loop: MakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on machines with separate disks: one would resume, and wait for the others for ever."""
    monkeypatch.setattr(Processes, "of_the_first", lambda processes, step: 12.0)
    with pytest.raises(ArtifactError, match=r"(?s)0 here, 12 in the first.*share"):
        loop().resume()


def test_a_training_without_any_target_stops_with_an_error(loop: MakeLoop) -> None:
    silent = (Batch(epoch, 0, torch.empty(0), num_tokens=8, num_targets=0) for epoch in range(5000))
    with pytest.raises(TrainingError, match=r"(?s)1,001 batches.*epoch 1000.*mask_rate"):
        run(loop(batches_from=lambda epoch, index: silent))


def warned(losses: list[float], caplog: pytest.LogCaptureFixture) -> int:
    """Return the number of warnings about a training with these losses; token frequencies alone give a loss of 6.1."""
    warning = PlateauWarning(unigram_loss=6.1, first_step=50, patience_points=5)
    with caplog.at_level(logging.WARNING):
        for place, loss in enumerate(losses, start=1):
            warning.on_point(CurvePoint(10 * place, loss, 1e-3, 1.0, 0, 0.5))
    return len(caplog.records)


def test_a_loss_stuck_at_the_unigram_entropy_gets_one_warning_with_advice(caplog: pytest.LogCaptureFixture) -> None:
    """P23."""
    assert warned([9.0, 7.0, *[6.12] * 40], caplog) == 1
    assert "half the learning rate" in caplog.text
    assert "6.10" in caplog.text


@pytest.mark.parametrize(
    "losses",
    [
        [9.0, 7.0, *[6.12] * 6, 5.8, 5.5, 5.2],  # passes the plateau
        [6.1, 6.1, 6.1, 6.1, 5.5, 5.0],  # at the plateau only during warm-up
        [6.12, 5.9] * 20,  # comes and goes
        [8.0] * 40,  # stands elsewhere
    ],
)
def test_a_training_that_passes_the_plateau_gets_no_warning(losses: list[float], caplog) -> None:
    assert warned(losses, caplog) == 0


def test_the_unigram_entropy_equals_that_of_the_tokens(tiny_tokens: Path) -> None:
    """In the tiny language 59 words are almost equally frequent: ln 59 = 4.08."""
    split = Split.open(TokenShards.open(tiny_tokens, "train"), max_length=32)
    assert unigram_entropy(split.shards, split.vocabulary) == pytest.approx(4.07, abs=0.02)
