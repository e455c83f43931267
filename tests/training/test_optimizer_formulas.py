"""Every kind against its formula, written again in numpy.

Shapes: K matrices of R rows and C columns.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from clozeline.training.optimizers import build_optimizer, orthogonalize
from tests.training.optimizer_params import (
    BETA1,
    BETA2,
    DECAY,
    EPSILON,
    KINDS,
    LEARNING_RATE,
    MATRIX_LEARNING_RATE,
    params_of,
)

Array = np.ndarray


class Formula:
    """One tensor under one formula, in float64: called with a gradient, it gives the tensor after the step."""

    def __init__(self, update: Callable[..., Array], weight: Array) -> None:
        self.weight = weight.astype(np.float64)
        self.update = update
        self.step = 0
        self.memory: dict[str, Array] = {}

    def __call__(self, gradient: Array) -> Array:
        self.step += 1
        decay = DECAY if self.weight.ndim == 2 else 0.0
        self.weight = self.update(self.weight, gradient.astype(np.float64), self.memory, self.step, decay)
        return self.weight


def smoothed(memory: dict[str, Array], name: str, beta: float, value: Array) -> Array:
    memory[name] = beta * memory.get(name, np.zeros_like(value)) + (1 - beta) * value
    return memory[name]


def adamw(w: Array, g: Array, memory: dict[str, Array], t: int, decay: float) -> Array:
    m = smoothed(memory, "m", BETA1, g) / (1 - BETA1**t)
    v = smoothed(memory, "v", BETA2, g * g) / (1 - BETA2**t)
    return w - LEARNING_RATE * (m / (np.sqrt(v) + EPSILON) + decay * w)


def lamb(w: Array, g: Array, memory: dict[str, Array], t: int, decay: float) -> Array:
    m = smoothed(memory, "m", BETA1, g) / (1 - BETA1**t)
    v = smoothed(memory, "v", BETA2, g * g) / (1 - BETA2**t)
    u = m / (np.sqrt(v) + EPSILON) + decay * w
    trust = np.linalg.norm(w) / np.linalg.norm(u) if w.ndim == 2 else 1.0
    return w - LEARNING_RATE * trust * u


def stableadamw(w: Array, g: Array, memory: dict[str, Array], t: int, decay: float) -> Array:
    m = smoothed(memory, "m", BETA1, g) / (1 - BETA1**t)
    v = smoothed(memory, "v", BETA2, g * g) / (1 - BETA2**t)
    rms = np.sqrt(np.mean(g * g / np.maximum(v, EPSILON**2)))
    rate = LEARNING_RATE / max(1.0, rms)
    return w - rate * decay * w - rate * m / (np.sqrt(v) + EPSILON)


def novograd(w: Array, g: Array, memory: dict[str, Array], t: int, decay: float) -> Array:
    square = np.sum(g * g)
    memory["v"] = square if t == 1 else BETA2 * memory["v"] + (1 - BETA2) * square
    memory["m"] = BETA1 * memory.get("m", 0) + g / (np.sqrt(memory["v"]) + EPSILON) + decay * w
    return w - LEARNING_RATE * memory["m"]


def muon(w: Array, g: Array, memory: dict[str, Array], t: int, decay: float) -> Array:
    if w.ndim < 2:
        return adamw(w, g, memory, t, decay)
    memory["b"] = 0.95 * memory.get("b", 0) + g
    x = g + 0.95 * memory["b"]
    x = x / np.linalg.norm(x)
    for _ in range(5):  # odd polynomial of the singular values, which needs no transposing
        left = x @ x.T
        x = 3.4445 * x - 4.7750 * left @ x + 2.0315 * left @ left @ x
    return w - MATRIX_LEARNING_RATE * (0.2 * np.sqrt(max(w.shape)) * x + decay * w)


FORMULAS = {"adamw": adamw, "lamb": lamb, "stableadamw": stableadamw, "novograd": novograd, "muon": muon}


@pytest.mark.parametrize("kind", KINDS)
def test_ten_steps_follow_the_formula(kind: str) -> None:
    """Gradients jump at step 6, which is what StableAdamW is for."""
    torch.manual_seed(0)
    layer = nn.ModuleList([nn.Linear(6, 4), nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False)])
    optimizer = build_optimizer(layer, params_of(kind))
    formulas = [Formula(FORMULAS[kind], parameter.detach().numpy()) for parameter in layer.parameters()]
    for step in range(10):
        for parameter in layer.parameters():
            parameter.grad = torch.randn_like(parameter) * (30 if step == 6 else 0.1)
        expected = [formula(p.grad.numpy()) for formula, p in zip(formulas, layer.parameters(), strict=True)]
        optimizer.step()
        for parameter, weight in zip(layer.parameters(), expected, strict=True):
            np.testing.assert_allclose(parameter.detach().numpy(), weight, atol=2e-5)


@pytest.mark.parametrize("shape", [(2, 32, 96), (3, 96, 32), (1, 48, 48)])
def test_an_orthogonalized_matrix_has_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    matrices_KRC = torch.randn(shape) + 0.3 * torch.eye(shape[1], shape[2]) * shape[1]
    values = torch.linalg.svdvals(orthogonalize(matrices_KRC))
    assert values.min() > 0.65
    assert values.max() < 1.25


def test_an_orthogonalized_matrix_keeps_its_singular_vectors_and_its_scale_does_not_matter() -> None:
    torch.manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(1, 16, 24), full_matrices=False)
    matrix_KRC = u @ torch.diag(torch.linspace(1, 2, 16)) @ v
    inner = u.mT @ orthogonalize(1e-3 * matrix_KRC) @ v.mT
    assert torch.allclose(inner, torch.diag_embed(torch.diagonal(inner, dim1=1, dim2=2)), atol=1e-4)
    assert torch.allclose(orthogonalize(matrix_KRC), orthogonalize(1e-3 * matrix_KRC), atol=1e-4)


def test_orthogonalizing_a_zero_matrix_gives_zeros() -> None:
    assert torch.equal(orthogonalize(torch.zeros(1, 3, 4)), torch.zeros(1, 3, 4))


def test_each_matrix_is_orthogonalized_separately() -> None:
    torch.manual_seed(0)
    matrices_KRC = torch.randn(4, 8, 12)
    alone = torch.cat([orthogonalize(matrix_RC[None]) for matrix_RC in matrices_KRC])
    assert torch.allclose(orthogonalize(matrices_KRC), alone, atol=1e-5)


def test_muon_equals_that_of_torch_up_to_its_bf16_rounding() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(*shape, bias=False) for shape in ((64, 64), (64, 192), (256, 64)))
    before = [layer.weight.detach().clone() for layer in layers]
    theirs = [nn.Parameter(weight.clone()) for weight in before]
    rates = {"lr": MATRIX_LEARNING_RATE, "weight_decay": 1.0, "adjust_lr_fn": "match_rms_adamw"}
    pair = (build_optimizer(layers, params_of("muon", weight_decay=1.0)), torch.optim.Muon(theirs, **rates))
    for _ in range(10):
        for layer, weight in zip(layers, theirs, strict=True):
            weight.grad = layer.weight.grad = torch.randn_like(weight)
        for optimizer in pair:
            optimizer.step()
    for layer, weight, start in zip(layers, theirs, before, strict=True):
        assert (layer.weight - weight).norm() < 0.02 * (weight - start).norm()


def test_muon_moves_a_matrix_as_far_as_adamw_would() -> None:
    """Root mean square of an update: about 0.2 of the rate, whatever the shape (Liu et al. 2025)."""
    torch.manual_seed(0)
    for shape in ((64, 64), (64, 192), (256, 64)):
        layer = nn.ModuleList([nn.Linear(shape[1], shape[0], bias=False)])
        weight = layer[0].weight
        before = weight.detach().clone()
        weight.grad = torch.randn(shape)
        build_optimizer(layer, params_of("muon", weight_decay=0.0)).step()
        assert (weight - before).square().mean().sqrt().item() == pytest.approx(0.2 * MATRIX_LEARNING_RATE, rel=0.2)
