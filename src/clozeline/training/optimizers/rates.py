"""The learning rates of an optimizer's groups, each a fraction of its own peak."""

import torch


def scale_learning_rates(optimizer: torch.optim.Optimizer, fraction: float) -> None:
    """Set each group's rate to `fraction` (0-1) of its `peak_lr`, which keeps the ratio between groups.

    A group without `peak_lr`, as in another library's optimizer, takes the rate it was built with as its peak.
    """
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("peak_lr", group["lr"]) * fraction
