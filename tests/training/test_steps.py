"""Claim: a step reads nothing from the device until losses are read; then the losses of all steps are."""

import contextlib
import math

import pytest
import torch
from torch import Tensor, nn

from clozeline.language.objectives import TargetBatch
from clozeline.system.errors import TrainingError
from clozeline.training.distribution import Processes, Sharding
from clozeline.training.micro_batches import Hardware, MicroBatches, Precision
from clozeline.training.state import Batch
from clozeline.training.steps import Steps

CPU = torch.device("cpu")


def ahead(model: nn.Module) -> Steps[Tensor]:
    """Steps as on a GPU, where reading a loss would wait for all earlier operations."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    steps: Steps[Tensor] = Steps(model, optimizer, lambda x_B1: (model(x_B1) ** 2).sum(), 1.0, Hardware.plain(), 0)
    steps.must_read = False
    return steps


def batch(index: int, value: float = 1.0) -> Batch[Tensor]:
    return Batch(0, index, torch.full((3, 1), value), num_tokens=3, num_targets=3)


def out_of_memory(*_: object) -> Tensor:
    raise torch.OutOfMemoryError("no memory")


@pytest.mark.parametrize(("sharding", "num_steps_before"), [("fsdp", 0), ("ddp", 3)])
def test_the_error_names_the_micro_batch_param_if_processes_cannot_halve_together(
    monkeypatch: pytest.MonkeyPatch, sharding: Sharding, num_steps_before: int
) -> None:
    """The other processes wait in the middle of a pass if weights are divided, or after the first steps have fit."""
    rows = TargetBatch(torch.zeros(6, 8, dtype=torch.int64), None, torch.arange(6), torch.arange(6))
    processes = Processes(0, 2, CPU, sharding=sharding)
    hardware = Hardware(processes, Precision.of("fp32", CPU), MicroBatches(None, CPU))
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps: Steps[TargetBatch] = Steps(model, optimizer, lambda batch: model.weight.sum(), 1.0, hardware, 0)
    monkeypatch.setattr(Processes, "any", lambda processes, is_so: is_so)
    monkeypatch.setattr(Processes, "one_sum", lambda *_, is_last: contextlib.nullcontext())
    for step in range(num_steps_before):
        steps.take(Batch(0, step, rows, num_tokens=48, num_targets=6), step)
    monkeypatch.setattr(steps, "_loss_sum", out_of_memory)
    with pytest.raises(TrainingError, match=r"(?s)out of memory on batch 7.*micro_batch_tokens: 24"):
        steps.take(Batch(0, 7, rows, num_tokens=48, num_targets=6), 7)


def test_running_out_of_memory_for_the_optimizers_state_is_reported() -> None:
    steps = ahead(nn.Linear(1, 1))
    steps._optimizer.register_step_pre_hook(out_of_memory)
    with pytest.raises(TrainingError, match=r"(?s)out of memory on batch 0.*smaller model"):
        steps.take(batch(0), step=0)


def test_training_stops_if_fp16_overflows_at_every_scale() -> None:
    """P26: a single step that overflows is skipped without an error; if every step is, nothing is learned."""
    model = nn.Linear(1, 1)
    hardware = Hardware(Processes.alone(), Precision.of("fp16", CPU), MicroBatches(None, CPU))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    factors = iter([1.0, math.inf, 1.0, *[math.inf] * 60])

    def loss_sum(x_B1: Tensor) -> Tensor:
        loss: Tensor = model(x_B1).float().sum()
        loss.register_hook(lambda gradient: gradient * next(factors))
        return loss

    steps: Steps[Tensor] = Steps(model, optimizer, loss_sum, 1.0, hardware, 0)

    def train(num_steps: int) -> None:
        for step in range(num_steps):
            steps.take(batch(step), step)
            steps.read()

    with pytest.raises(TrainingError, match=r"(?s)step 52.*50 steps.*bf16"):
        train(60)


def forbid_reading(patch: pytest.MonkeyPatch) -> None:
    def wait(tensor: Tensor) -> object:
        raise AssertionError("the processor waited for the device")

    for name in ("item", "tolist", "__float__", "__bool__", "numpy"):
        patch.setattr(Tensor, name, wait)


def test_no_step_synchronizes_with_the_device_between_two_curve_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """P38."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    steps = ahead(model)
    steps.take(batch(0), step=0)  # the optimizer allocates its state
    with monkeypatch.context() as patch:
        forbid_reading(patch)
        for index in range(1, 6):
            steps.take(batch(index), step=index)
    first = (model(torch.ones(3, 1)) ** 2).sum().item()
    assert steps.read()[0] > 6 * first  # six losses, each larger than the one after it
    assert steps.last_norm > 0


def test_the_first_failing_step_is_named_although_losses_are_read_late() -> None:
    """P26."""
    steps = ahead(nn.Linear(1, 1))
    for index, value in enumerate([1.0, 1.0, float("nan"), 1.0]):
        steps.take(batch(index, value), step=index)
    with pytest.raises(TrainingError, match="step 2, on batch 2 of epoch 0"):
        steps.read()
