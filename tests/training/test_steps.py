"""Claim: a step reads nothing from the device until losses are read; then the losses of all steps are."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clozeline.language.objectives import TargetBatch
from clozeline.system.errors import TrainingError
from clozeline.training.distribution import Processes
from clozeline.training.micro_batches import Hardware, Precision
from clozeline.training.state import Batch
from clozeline.training.steps import Steps, begin_step
from tests.training.prepared import CPU, OPTIMIZER, plain_hardware


def steps_of(
    model: nn.Module, loss_sum: Callable[[Any], Tensor], learning_rate: float = 0.1, **hardware: object
) -> Steps[Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    return Steps(model, optimizer, loss_sum, OPTIMIZER, replace(plain_hardware(), **hardware), seed=5)


def ahead() -> Steps[Tensor]:
    """Steps as on a GPU, where reading a loss would wait for all earlier operations."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    steps: Steps[Tensor] = Steps(
        model, optimizer, lambda x_B1: (model(x_B1) ** 2).sum(), OPTIMIZER, plain_hardware(), 0
    )
    steps.must_read = False
    return steps


def batch(index: int, value: float = 1.0) -> Batch[Tensor]:
    return Batch(0, index, torch.full((3, 1), value), num_tokens=3, num_targets=3)


def out_of_memory(*_: object) -> Tensor:
    raise torch.OutOfMemoryError("no memory")


@pytest.mark.parametrize(("sharding", "num_steps_before"), [("fsdp", 0), ("ddp", 3)])
def test_the_param_is_named_if_processes_cannot_halve_together(monkeypatch, sharding, num_steps_before: int) -> None:
    """The other processes wait in the middle of a pass if weights are divided, or after the first steps have fit."""
    rows = TargetBatch(torch.zeros(6, 8, dtype=torch.int64), None, torch.arange(6), torch.arange(6))
    model = nn.Linear(1, 1)
    processes = Processes(0, 2, CPU, sharding=sharding)
    steps = steps_of(model, lambda batch: model.weight.sum(), processes=processes)
    monkeypatch.setattr(Processes, "any", lambda processes, is_so: is_so)
    monkeypatch.setattr(Processes, "one_sum", lambda *_, is_last: contextlib.nullcontext())
    for step in range(num_steps_before):
        steps.take(Batch(0, step, rows, num_tokens=48, num_targets=6), step)
    monkeypatch.setattr(steps, "loss_sum", out_of_memory)
    with pytest.raises(TrainingError, match=r"(?s)out of memory on batch 7.*micro_batch_tokens: 24"):
        steps.take(Batch(0, 7, rows, num_tokens=48, num_targets=6), 7)


def test_running_out_of_memory_for_the_optimizers_state_is_reported() -> None:
    steps = ahead()
    steps.optimizer.register_step_pre_hook(out_of_memory)
    with pytest.raises(TrainingError, match=r"(?s)out of memory on batch 0.*smaller model"):
        steps.take(batch(0), step=0)


def test_training_stops_if_fp16_overflows_at_every_scale() -> None:
    """P26: a single step that overflows is skipped without an error; if every step is, nothing is learned."""
    model = nn.Linear(1, 1)
    factors = iter([1.0, math.inf, 1.0, *[math.inf] * 60])

    def loss_sum(x_B1: Tensor) -> Tensor:
        loss: Tensor = model(x_B1).float().sum()
        loss.register_hook(lambda gradient: gradient * next(factors))
        return loss

    steps = steps_of(model, loss_sum, precision=Precision.of("fp16", CPU))

    def train(num_steps: int) -> None:
        for step in range(num_steps):
            steps.take(batch(step), step)
            steps.read()

    with pytest.raises(TrainingError, match=r"(?s)step 52.*50 steps.*bf16"):
        train(60)


def test_no_step_synchronizes_with_the_device_between_two_curve_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """P38."""

    def wait(tensor: Tensor) -> object:
        raise AssertionError("the processor waited for the device")

    steps = ahead()
    steps.take(batch(0), step=0)  # the optimizer allocates its state
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "__float__", "__bool__", "numpy"):
            patch.setattr(Tensor, name, wait)
        for index in range(1, 6):
            steps.take(batch(index), step=index)
    last = steps.loss_sum(torch.ones(3, 1)).item()
    assert steps.read()[0] > 6 * last  # six losses, each larger than the one after it
    assert steps.last_norm > 0


def test_the_first_failing_step_is_named_although_losses_are_read_late() -> None:
    """P26."""
    steps = ahead()
    for index, value in enumerate([1.0, 1.0, float("nan"), 1.0]):
        steps.take(batch(index, value), step=index)
    with pytest.raises(TrainingError, match="step 2, on batch 2 of epoch 0"):
        steps.read()


def drawn(seed: int, step: int, rank: int) -> tuple[float, ...]:
    torch.seed()
    begin_step(seed, step, rank, CPU)
    return tuple(torch.rand(4).tolist())


def test_the_random_draws_depend_on_seed_step_and_process_and_not_on_earlier_draws() -> None:
    every = [(seed, step, rank) for seed in (0, 1, 2**40) for step in (0, 1, 1000) for rank in (0, 1, 7)]
    draws = [drawn(*who) for who in every]
    assert len(set(draws)) == len(every)
    assert draws == [drawn(*who) for who in every]


def test_a_gpu_is_seeded_with_the_bits_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed", given.append)
    begin_step(1, 2, 3, CPU)
    assert given == []
    begin_step(1, 2, 3, torch.device("cuda", 0))
    assert given == [torch.initial_seed()]


class Thinned(nn.Module):
    """A linear layer after dropout; memory runs out in the first `failures` passes, after the random draw."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.line, self.thin, self.failures = nn.Linear(64, 1), nn.Dropout(0.5), failures

    def forward(self, x_BH: Tensor) -> Tensor:
        y_B1 = self.line(self.thin(x_BH))
        if self.failures:
            self.failures -= 1
            raise torch.OutOfMemoryError("no memory")
        return (y_B1**2).sum()


def losses(rank: int = 0, failures: int = 0, learning_rate: float = 0.1) -> list[float]:
    """Return the losses of three steps of process `rank`, which starts from a random state of its own in each call."""
    torch.manual_seed(0)
    model = Thinned(failures)
    torch.seed()
    hardware: Hardware[Any] = plain_hardware()
    steps = steps_of(model, model, learning_rate, processes=replace(hardware.processes, rank=rank))
    steps.hardware.micro_batches.halve = lambda inputs, rows_short: True
    found = []
    for step in range(3):
        steps.take(Batch(0, step, torch.ones(4, 64), num_tokens=4, num_targets=4), step)
        found.append(steps.read()[0])
    return found


def test_each_step_and_each_process_has_its_own_reproducible_dropout() -> None:
    assert len(set(losses(learning_rate=0.0))) == 3, "only dropout changes the loss"
    assert losses(rank=1) == losses(rank=1)
    assert losses(rank=0)[0] != losses(rank=1)[0]
    assert losses(failures=2) == losses(), "a retry after running out of memory draws the same"
