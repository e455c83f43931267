"""The learning rates of an optimizer's groups, each a fraction of its own peak."""

import torch


def scale_learning_rates(optimizer: torch.optim.Optimizer, fraction: float) -> None:
    """Set each group's rate to `fraction` (0-1) of its `peak_lr`: the ratio between groups stays as it was built.

    The peak of a group that names none, as those of another library's optimizer, is the rate it was built with.
    """
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("peak_lr", group["lr"]) * fraction


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the rate of all that has no rate of its own, and scale that of the others with it."""
    scale_learning_rates(optimizer, learning_rate / optimizer.defaults["lr"])
