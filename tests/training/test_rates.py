"""Claim: a parameter's share of the learning rate is kept through groups and schedule, for every kind of optimizer."""

import pytest
import torch
from torch import nn

from clozeline.params.model import OptimizerParams
from clozeline.training.optimizers import OPTIMIZERS, build_optimizer, scale_learning_rates


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.head = nn.Linear(4, 2)


def params(kind: str) -> OptimizerParams:
    return OptimizerParams(
        kind=kind,
        learning_rate=0.1,
        matrix_learning_rate=0.2 if kind == "muon" else None,
        beta1=0.9,
        beta2=0.99,
        epsilon=1e-8,
        weight_decay=0.01,
        clip_norm=1.0,
    )


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_parameter_uses_its_share_of_the_learning_rate(kind: str) -> None:
    model = Model()
    shares = {id(parameter): 0.5 for parameter in model.layers[0].parameters()}
    alike = build_optimizer(model, params(kind))
    optimizer = build_optimizer(model, params(kind), lambda parameter: shares.get(id(parameter), 1.0))
    for each in (optimizer, alike):
        scale_learning_rates(each, 0.3)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    usual = {id(p): group["lr"] for group in alike.param_groups for p in group["params"]}
    assert set(rates) == {id(parameter) for parameter in model.parameters()}
    assert rates == {key: pytest.approx(rate * shares.get(key, 1.0)) for key, rate in usual.items()}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_learning_rate_share_of_1_changes_nothing(kind: str) -> None:
    weights = []
    for rate_of in (None, lambda parameter: 1.0):
        torch.manual_seed(0)
        model = Model()
        optimizer = build_optimizer(model, params(kind), rate_of)
        model.head(model.layers[1](model.layers[0](torch.ones(3, 4)))).square().sum().backward()
        optimizer.step()
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    torch.testing.assert_close(*weights, rtol=0, atol=0)
