"""Every kind against its formula, written again in numpy; its groups; its way through a checkpoint.

Shapes: B rows, R rows and C columns of a matrix.
"""

import copy
import io
import typing
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clozeline.errors import ParamsError
from clozeline.params import OptimizerParams
from clozeline.training.optimizers import OPTIMIZERS, build_optimizer, scale_learning_rates
from clozeline.training.optimizers.muon import orthogonalize

KINDS = sorted(OPTIMIZERS)
LEARNING_RATE, MATRIX_LEARNING_RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.02, 0.9, 0.98, 1e-6, 0.1
Array = np.ndarray


def params_of(kind: str, **values: float) -> OptimizerParams:
    given = {
        "learning_rate": LEARNING_RATE,
        "beta1": BETA1,
        "beta2": BETA2,
        "epsilon": EPSILON,
        "weight_decay": DECAY,
        "clip_norm": 1.0,
        **values,
    }
    matrix_learning_rate = MATRIX_LEARNING_RATE if kind == "muon" else None
    return OptimizerParams(kind=kind, matrix_learning_rate=matrix_learning_rate, **given)


class Encoder(nn.Module):
    """Embeddings tied to a decoder, layers with matrices (one tied), norms and biases, a head, and a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"up": nn.Linear(8, 12), "norm": nn.LayerNorm(12), "down": nn.Linear(12, 8, bias=False)})
            for _ in range(2)
        )
        self.head = nn.Linear(8, 8)
        self.decoder = nn.Linear(8, 11)
        self.decoder.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.zeros(3, 3), requires_grad=False)

    def forward(self, ids_B: Tensor) -> Tensor:
        hidden_BH = self.embedding(ids_B)
        for layer in self.layers:
            hidden_BH = hidden_BH + layer["down"](torch.relu(layer["norm"](layer["up"](hidden_BH))))
        return self.decoder(self.head(hidden_BH))


def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int) -> float:
    """Learn that token t is followed by 3t + 1; returns the loss before the last step."""
    ids_B = torch.arange(11)
    loss = torch.zeros(())
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(ids_B), (3 * ids_B + 1) % 11)
        loss.backward()
        optimizer.step()
    return loss.item()


def group_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, object]:
    found = [group for group in optimizer.param_groups if any(parameter is member for member in group["params"])]
    assert len(found) == 1
    return found[0]


def test_the_kinds_are_those_that_params_take() -> None:
    assert set(OPTIMIZERS) == set(typing.get_args(OptimizerParams.model_fields["kind"].annotation))


@pytest.mark.parametrize("kind", KINDS)
def test_every_trained_parameter_is_in_one_group_once_a_tied_one_too(kind: str) -> None:
    """P24."""
    model = encoder()
    grouped = [
        id(parameter) for group in build_optimizer(model, params_of(kind)).param_groups for parameter in group["params"]
    ]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters() if parameter.requires_grad)


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_decay_and_norms_and_biases_do_not(kind: str) -> None:
    """P24."""
    model = encoder()
    optimizer = build_optimizer(model, params_of(kind))
    for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
        assert group_of(optimizer, parameter)["weight_decay"] == (DECAY if parameter.ndim == 2 else 0.0)


def test_only_the_matrices_of_layers_are_hidden_for_muon() -> None:
    model = encoder()
    optimizer = build_optimizer(model, params_of("muon"))
    hidden = {
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and group_of(optimizer, parameter)["is_hidden"]
    }
    assert hidden == {f"layers.{layer}.{name}.weight" for layer in (0, 1) for name in ("up", "down")}


def test_an_embedding_inside_a_layer_is_not_hidden() -> None:
    model = encoder()
    model.layers.append(nn.ModuleDict({"positions": nn.Embedding(4, 8)}))
    optimizer = build_optimizer(model, params_of("muon"))
    assert not group_of(optimizer, model.layers[2]["positions"].weight)["is_hidden"]


def test_muon_refuses_a_model_without_hidden_matrices() -> None:
    with pytest.raises(ParamsError, match="ModuleList"):
        build_optimizer(nn.Linear(3, 3), params_of("muon"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_matrices_alone_is_taken(kind: str) -> None:
    model = nn.ModuleList([nn.Linear(3, 3, bias=False)])
    assert [len(group["params"]) for group in build_optimizer(model, params_of(kind)).param_groups] == [1]


@pytest.mark.parametrize("fraction", [0.0, 0.25, 1.0])
def test_each_group_gets_its_own_peak_times_the_fraction(fraction: float) -> None:
    model = encoder()
    optimizer = build_optimizer(model, params_of("muon"))
    scale_learning_rates(optimizer, 0.5)
    scale_learning_rates(optimizer, fraction)
    assert group_of(optimizer, model.layers[0]["up"].weight)["lr"] == MATRIX_LEARNING_RATE * fraction
    assert group_of(optimizer, model.embedding.weight)["lr"] == LEARNING_RATE * fraction
    assert group_of(optimizer, model.decoder.bias)["lr"] == LEARNING_RATE * fraction


def test_an_optimizer_built_elsewhere_has_the_rate_it_was_built_with_as_its_peak() -> None:
    optimizer = torch.optim.SGD(encoder().parameters(), lr=0.5)
    scale_learning_rates(optimizer, 0.25)
    scale_learning_rates(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_of_zero_changes_nothing(kind: str) -> None:
    model = encoder()
    before = copy.deepcopy(model.state_dict())
    optimizer = build_optimizer(model, params_of(kind))
    scale_learning_rates(optimizer, 0.0)
    train(model, optimizer, 2)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_a_toy_task_is_learnt(kind: str) -> None:
    model = encoder()
    optimizer = build_optimizer(model, params_of(kind, weight_decay=0.0))
    first = train(model, optimizer, 1)
    assert train(model, optimizer, 150) < first / 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_without_gradient_stays_and_the_others_move(kind: str) -> None:
    model = encoder()
    before = copy.deepcopy(model.state_dict())
    optimizer = build_optimizer(model, params_of(kind))
    model.layers[0]["up"](torch.ones(2, 8)).sum().backward()
    optimizer.step()
    assert torch.equal(model.head.weight, before["head.weight"])
    assert not torch.equal(model.layers[0]["up"].weight, before["layers.0.up.weight"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_leaves_the_gradients_as_they_are(kind: str) -> None:
    model = encoder()
    optimizer = build_optimizer(model, params_of(kind))
    functional.cross_entropy(model(torch.arange(11)), torch.arange(11)).backward()
    before = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    optimizer.step()
    after = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_random_state_is_left_alone(kind: str) -> None:
    model = encoder()
    optimizer = build_optimizer(model, params_of(kind))
    before = torch.get_rng_state()
    train(model, optimizer, 2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_goes_through_a_checkpoint_ends_with_the_same_bytes(kind: str) -> None:
    """P29, the optimizer's part."""
    whole = encoder()
    whole_optimizer = build_optimizer(whole, params_of(kind))
    train(whole, whole_optimizer, 9)

    first = encoder()
    first_optimizer = build_optimizer(first, params_of(kind))
    scale_learning_rates(first_optimizer, 1.0)
    train(first, first_optimizer, 4)
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": first_optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)

    second = encoder()
    second_optimizer = build_optimizer(second, params_of(kind))
    second.load_state_dict(saved["model"])
    second_optimizer.load_state_dict(saved["optimizer"])
    train(second, second_optimizer, 5)
    for name, tensor in whole.state_dict().items():
        assert tensor.numpy().tobytes() == second.state_dict()[name].numpy().tobytes(), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_with_a_closure_gives_its_loss(kind: str) -> None:
    model = encoder()
    optimizer = build_optimizer(model, params_of(kind))

    def closure() -> Tensor:
        loss = model(torch.arange(11)).square().mean()
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0


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


def test_a_matrix_of_zeros_stays_zero() -> None:
    assert torch.equal(orthogonalize(torch.zeros(1, 3, 4)), torch.zeros(1, 3, 4))


def test_each_matrix_is_orthogonalized_alone() -> None:
    torch.manual_seed(0)
    matrices_KRC = torch.randn(4, 8, 12)
    alone = torch.cat([orthogonalize(matrix_RC[None]) for matrix_RC in matrices_KRC])
    assert torch.allclose(orthogonalize(matrices_KRC), alone, atol=1e-5)


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
