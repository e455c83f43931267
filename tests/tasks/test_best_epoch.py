"""Claim: the best epoch's weights are kept, and a run that was killed ends with the bytes of one that was not."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from clozeline.errors import TrainingError
from clozeline.tasks.best_epoch import BestEpoch, EpochPoint
from clozeline.training.callbacks import Callback
from clozeline.training.checkpoint import Checkpoints
from clozeline.training.hardware import Hardware
from clozeline.training.loop import Loop
from clozeline.training.state import Batch

STEPS_PER_EPOCH = 4
NUM_EPOCHS = 5


class Killed(BaseException):
    pass


def batches_from(epoch: int, index: int) -> Iterator[Batch[Tensor]]:
    while True:
        for place in range(index, STEPS_PER_EPOCH):
            draw = torch.Generator().manual_seed(100 * epoch + place)
            yield Batch(epoch, place, torch.randn(3, 2, generator=draw), num_tokens=3, num_targets=3)
        epoch, index = epoch + 1, 0


def training(
    work: Path, score: Callable[[nn.Module, int], float], loss: Callable[[Tensor], Tensor] = torch.square
) -> tuple[BestEpoch, nn.Module]:
    """A linear model whose `score` is asked with the model and how many epochs were judged before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5))
    asked = iter(range(100))
    loop = Loop(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.1),
        batches_from=batches_from,
        loss_sum=lambda inputs_B2: loss(model(inputs_B2)).sum(),
        fraction_at=lambda step: 1 / (step + 1),
        total_steps=NUM_EPOCHS * STEPS_PER_EPOCH,
        clip_norm=1.0,
        log_every_steps=2,
        checkpoint_every_steps=1000,
        checkpoints=Checkpoints.of(work, "run", keep=1),
        hardware=Hardware.plain(),
        seed=0,
    )
    return BestEpoch(loop, STEPS_PER_EPOCH, NUM_EPOCHS, lambda: score(model, next(asked))), model


def run(work: Path, score: Callable[[nn.Module, int], float]) -> tuple[list[EpochPoint], list[Tensor]]:
    best_epoch, model = training(work, score)
    points = best_epoch.run(Callback(), lambda point: None)
    return points, [weight.detach().clone() for weight in model.state_dict().values()]


def scores_of(*values: float) -> Callable[[nn.Module, int], float]:
    return lambda model, asked: values[asked]


def weight_sum(model: nn.Module, asked: int) -> float:
    return float(sum(weight.sum() for weight in model.state_dict().values()))


@pytest.mark.parametrize(
    ("scores", "best"), [((1, 5, 2, 3, 4), 2), ((1, 2, 3, 4, 5), 5), ((5, 5, 5, 5, 5), 1), ((0, 3, 1, 3, 2), 2)]
)
def test_the_first_of_the_best_epochs_is_kept(tmp_path: Path, scores: tuple[float, ...], best: int) -> None:
    seen: list[list[Tensor]] = []

    def judge(model: nn.Module, asked: int) -> float:
        seen.append([weight.clone() for weight in model.state_dict().values()])
        return scores[asked]

    points, weights = run(tmp_path, judge)
    assert [point.validation_score for point in points] == list(scores)
    assert [point.step for point in points] == [4, 8, 12, 16, 20]
    torch.testing.assert_close(weights, seen[best - 1], rtol=0, atol=0)
    assert not all(torch.equal(one, other) for one, other in zip(weights, seen[best % NUM_EPOCHS], strict=True))


@pytest.mark.parametrize("killed_after", range(NUM_EPOCHS))
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(tmp_path: Path, killed_after: int) -> None:
    def killed_once(model: nn.Module, asked: int) -> float:
        if asked == killed_after:
            raise Killed
        return weight_sum(model, asked)

    whole_points, whole_weights = run(tmp_path / "whole", weight_sum)
    with pytest.raises(Killed):
        run(tmp_path / "parts", killed_once)
    epochs_judged = []
    points, weights = run(tmp_path / "parts", lambda model, asked: epochs_judged.append(asked) or weight_sum(model, 0))
    assert points == whole_points
    assert len(epochs_judged) == NUM_EPOCHS - killed_after
    torch.testing.assert_close(weights, whole_weights, rtol=0, atol=0)


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first = run(tmp_path, scores_of(1, 5, 2, 3, 4))
    again = run(tmp_path, scores_of())
    assert again[0] == first[0]
    torch.testing.assert_close(again[1], first[1], rtol=0, atol=0)


def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path) -> None:
    best_epoch, _ = training(tmp_path, weight_sum, loss=lambda outputs: outputs * float("nan"))
    with pytest.raises(TrainingError, match="diverged at step 0"):
        best_epoch.run(Callback(), lambda point: None)
