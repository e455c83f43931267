"""The kinds of optimizers: a row each. A new kind is a new row, and its name in OptimizerParams."""

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
    """How parameters are grouped, and what steps over the groups."""

    group: Callable[[nn.Module, OptimizerParams], list[Group]]
    create: Callable[[list[Group], dict[str, Any]], torch.optim.Optimizer]
    """Groups and defaults (`lr`, `betas`, `eps`) → optimizer."""


def build_optimizer(
    model: nn.Module, params: OptimizerParams, rate_of: Callable[[nn.Parameter], float] | None = None
) -> torch.optim.Optimizer:
    """The optimizer `params.kind` over the parameters of `model` that want a gradient, each in one group once.

    Each group knows its `peak_lr`, of which `scale_learning_rates` sets a fraction. `rate_of` says what share of its
    learning rate a parameter learns at; None: all of it.

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
    # `fused` is in the groups because torch decides by it how a loaded step count is kept.
    return MuonWithAdamW(groups, {**defaults, "fused": True})


OPTIMIZERS: Mapping[str, OptimizerKind] = MappingProxyType(
    {
        "adamw": OptimizerKind(decay_groups, _adamw),
        "muon": OptimizerKind(hidden_matrix_groups, _muon),
        "novograd": OptimizerKind(decay_groups, NovoGrad),
        "lamb": OptimizerKind(decay_groups, Lamb),
        "stableadamw": OptimizerKind(decay_groups, StableAdamW),
    }
)
"""Keyed by `kind` in params.yaml."""
