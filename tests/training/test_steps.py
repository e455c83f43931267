"""Claim: a step asks nothing of the device until someone wants to know, and then hears of every step."""

import pytest
import torch
from torch import Tensor, nn

from clozeline.errors import TrainingError
from clozeline.training.hardware import Hardware
from clozeline.training.state import Batch
from clozeline.training.steps import Steps


def ahead(model: nn.Module) -> Steps[Tensor]:
    """Steps as on a GPU, where reading a loss would wait for all that was asked before."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    steps: Steps[Tensor] = Steps(model, optimizer, lambda x_B1: (model(x_B1) ** 2).sum(), 1.0, Hardware.plain(), 0)
    steps.must_read = False
    return steps


def batch(index: int, value: float = 1.0) -> Batch[Tensor]:
    return Batch(0, index, torch.full((3, 1), value), num_tokens=3, num_targets=3)


def forbid_reading(patch: pytest.MonkeyPatch) -> None:
    def wait(tensor: Tensor) -> object:
        raise AssertionError("the processor waited for the device")

    for name in ("item", "tolist", "__float__", "__bool__", "numpy"):
        patch.setattr(Tensor, name, wait)


def test_no_step_waits_for_the_device_between_two_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """P38."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    steps = ahead(model)
    steps.take(batch(0), step=0)  # the optimizer makes its state
    with monkeypatch.context() as patch:
        forbid_reading(patch)
        for index in range(1, 6):
            steps.take(batch(index), step=index)
    first = (model(torch.ones(3, 1)) ** 2).sum().item()
    assert steps.read() > 6 * first  # six losses, each larger than the one after it
    assert steps.last_norm > 0


def test_the_first_of_the_steps_that_went_wrong_is_named_though_it_is_read_late() -> None:
    """P26."""
    steps = ahead(nn.Linear(1, 1))
    for index, value in enumerate([1.0, 1.0, float("nan"), 1.0]):
        steps.take(batch(index, value), step=index)
    with pytest.raises(TrainingError, match="step 2, on batch 2 of epoch 0"):
        steps.read()
