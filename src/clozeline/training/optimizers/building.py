"""The kinds of optimizers, one row each. A new kind is a new row, and its name in OptimizerParams."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from clozeline.params import OptimizerParams
from clozeline.training.optimizers.groups import Group, by_rate, decay_groups, hidden_matrix_groups
from clozeline.training.optimizers.lamb import Lamb
from clozeline.training.optimizers.muon import MuonWithAdamW
from clozeline.training.optimizers.novograd import NovoGrad
from clozeline.training.optimizers.stable_adamw import StableAdamW


@dataclass(frozen=True)
class OptimizerKind:
    """Grouping of the parameters, and the optimizer that steps over the groups."""

    group: Callable[[nn.Module, OptimizerParams], list[Group]]
    create: Callable[[list[Group], dict[str, Any]], torch.optim.Optimizer]
    """Maps groups and defaults (`lr`, `betas`, `eps`) to an optimizer."""
    num_states: int
    """State tensors per parameter, of the parameter's shape."""
    num_states_of_hidden: int
    """State tensors per hidden matrix."""


def build_optimizer(
    model: nn.Module, params: OptimizerParams, rate_of: Callable[[nn.Parameter], float] | None = None
) -> torch.optim.Optimizer:
    """Return the optimizer `params.kind` over the trainable parameters of `model`, each in exactly one group.

    Each group has a `peak_lr`, of which `scale_learning_rates` sets a fraction. `rate_of` returns the share of the
    learning rate at which a parameter learns; None: all parameters learn at the full rate.

    Raises:
        ParamsError: `muon`, and the model has no hidden matrix.
    """
    kind = OPTIMIZERS[params.kind]
    defaults = {"lr": params.learning_rate, "betas": (params.beta1, params.beta2), "eps": params.epsilon}
    groups = kind.group(model, params)
    return kind.create(groups if rate_of is None else by_rate(groups, rate_of), defaults)


def _adamw(groups: list[Group], defaults: dict[str, Any]) -> torch.optim.Optimizer:
    """Loshchilov & Hutter 2019, algorithm 2."""
    return torch.optim.AdamW(groups, **defaults, fused=True)


def _muon(groups: list[Group], defaults: dict[str, Any]) -> torch.optim.Optimizer:
    # `fused` is in the groups because torch decides by it how to store a loaded step count.
    return MuonWithAdamW(groups, {**defaults, "fused": True})


OPTIMIZERS: Mapping[str, OptimizerKind] = MappingProxyType(
    {
        "adamw": OptimizerKind(decay_groups, _adamw, 2, 2),
        "muon": OptimizerKind(hidden_matrix_groups, _muon, 2, 1),
        "novograd": OptimizerKind(decay_groups, NovoGrad, 1, 1),
        "lamb": OptimizerKind(decay_groups, Lamb, 2, 2),
        "stableadamw": OptimizerKind(decay_groups, StableAdamW, 2, 2),
    }
)
"""Keyed by `kind` in params.yaml."""


def scale_learning_rates(optimizer: torch.optim.Optimizer, fraction: float) -> None:
    """Set each group's rate to `fraction` (0-1) of its `peak_lr`, which keeps the ratio between groups.

    A group without `peak_lr`, as in another library's optimizer, takes the rate it was built with as its peak.
    """
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("peak_lr", group["lr"]) * fraction
