"""The learning rates of an optimizer's groups, each a fraction of its own peak."""

import torch


def scale_learning_rates(optimizer: torch.optim.Optimizer, fraction: float) -> None:
    """Set each group's rate to `fraction` (0-1) of its `peak_lr`: the ratio between groups stays as it was built.

    The peak of a group that names none, as those of another library's optimizer, is the rate it was built with.
    """
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("peak_lr", group["lr"]) * fraction
