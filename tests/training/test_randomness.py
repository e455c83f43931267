"""Claim: the random numbers of a step depend only on seed, step and process, and leave the global state unchanged."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clozeline.training.micro_batches import Hardware
from clozeline.training.state import Batch
from clozeline.training.steps import Steps, begin_step

CPU = torch.device("cpu")


def drawn(seed: int, step: int, rank: int) -> list[float]:
    begin_step(seed, step, rank, CPU)
    numbers: list[float] = torch.rand(4).tolist()
    return numbers


def test_the_random_draws_of_a_step_do_not_depend_on_earlier_draws() -> None:
    first = drawn(1, 2, 3)
    torch.rand(1000)
    assert drawn(1, 2, 3) == first


def test_another_seed_step_or_process_gives_different_draws() -> None:
    every = [(seed, step, rank) for seed in (0, 1, 2**40) for step in (0, 1, 1000) for rank in (0, 1, 7)]
    assert len({tuple(drawn(*who)) for who in every}) == len(every)


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


def losses(
    rank: int = 0, failures: int = 0, monkeypatch: pytest.MonkeyPatch | None = None, learning_rate: float = 0.1
) -> list[float]:
    """Return the losses of three steps of process `rank`, which starts from a random state of its own in each call."""
    torch.manual_seed(0)
    model = Thinned(failures)
    torch.seed()
    plain: Hardware[Any] = Hardware.plain()
    hardware = replace(plain, processes=replace(plain.processes, rank=rank))
    if monkeypatch is not None:
        monkeypatch.setattr(hardware.micro_batches, "halve", lambda inputs, rows_short: True)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    steps: Steps[Tensor] = Steps(model, optimizer, model, 1.0, hardware, seed=5)
    found = []
    for step in range(3):
        steps.take(Batch(0, step, torch.ones(4, 64), num_tokens=4, num_targets=4), step)
        found.append(steps.read()[0])
    return found


def test_each_step_has_its_own_dropout() -> None:
    assert len(set(losses(learning_rate=0.0))) == 3, "only dropout changes the loss"


def test_each_process_has_its_own_reproducible_dropout() -> None:
    assert losses(rank=0) == losses(rank=0)
    assert losses(rank=1) == losses(rank=1)
    assert losses(rank=0)[0] != losses(rank=1)[0]


def test_a_retry_after_running_out_of_memory_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert losses(failures=2, monkeypatch=monkeypatch) == losses()
