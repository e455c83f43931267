"""Every optimizer: its formula, which of a model's parameters it changes and at which rate, and its way through a
checkpoint; and the schedule of the learning rate. Shapes: B rows, H hidden.
"""

import copy
import inspect
import io
import math
import typing
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clozeline.encoder.families import FAMILIES
from clozeline.encoder.families.layout import TokenIds
from clozeline.language import models
from clozeline.params.model import OptimizerParams, ScheduleParams
from clozeline.params.pretraining import PretrainParams
from clozeline.system.errors import ParamsError
from clozeline.training.optimizers import (
    DECAYS,
    OPTIMIZERS,
    Schedule,
    build_optimizer,
    orthogonalize,
    scale_learning_rates,
)
from tests.training.prepared import changed

KINDS = sorted(OPTIMIZERS)
LEARNING_RATE, MATRIX_LEARNING_RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.02, 0.9, 0.98, 1e-6, 0.1


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
    """Train the model to predict 3t + 1 after token t; return the loss before the last step."""
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


def test_every_optimizer_of_params_exists() -> None:
    assert set(OPTIMIZERS) == set(typing.get_args(OptimizerParams.model_fields["kind"].annotation))


@pytest.mark.parametrize("kind", KINDS)
def test_every_trained_parameter_including_tied_ones_is_in_one_group(kind: str) -> None:
    """P24."""
    model = encoder()
    grouped = [
        id(parameter) for group in build_optimizer(model, params_of(kind)).param_groups for parameter in group["params"]
    ]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters() if parameter.requires_grad)


@pytest.mark.parametrize("kind", KINDS)
def test_only_matrices_have_weight_decay(kind: str) -> None:
    """P24."""
    model = encoder()
    optimizer = build_optimizer(model, params_of(kind))
    for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
        assert group_of(optimizer, parameter)["weight_decay"] == (DECAY if parameter.ndim == 2 else 0.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_every_family_only_norms_and_biases_have_no_weight_decay(
    family: str, tiny_pretraining: PretrainParams
) -> None:
    """P24."""
    shape = changed(tiny_pretraining, model__family=family).model
    model = models.build(shape, "mlm", TokenIds(64, pad_id=0, cls_id=2, sep_id=3), seed=0)
    decaying = {
        id(parameter)
        for group in build_optimizer(model, params_of("adamw")).param_groups
        for parameter in group["params"]
        if group["weight_decay"]
    }
    of_norms = {id(one) for part in model.modules() if isinstance(part, nn.LayerNorm) for one in part.parameters()}
    biases = {id(parameter) for name, parameter in model.named_parameters() if name.endswith("bias")}
    assert decaying == {id(parameter) for parameter in model.parameters()} - of_norms - biases


def test_only_matrices_inside_layers_are_hidden_matrices_for_muon() -> None:
    model = encoder()
    optimizer = build_optimizer(model, params_of("muon"))
    hidden = {
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and group_of(optimizer, parameter)["is_hidden"]
    }
    assert hidden == {f"layers.{layer}.{name}.weight" for layer in (0, 1) for name in ("up", "down")}


def test_an_embedding_inside_a_layer_is_not_a_hidden_matrix() -> None:
    model = encoder()
    model.layers.append(nn.ModuleDict({"positions": nn.Embedding(4, 8)}))
    optimizer = build_optimizer(model, params_of("muon"))
    assert not group_of(optimizer, model.layers[2]["positions"].weight)["is_hidden"]


def test_muon_refuses_a_model_without_hidden_matrices() -> None:
    with pytest.raises(ParamsError, match="ModuleList"):
        build_optimizer(nn.Linear(3, 3), params_of("muon"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_with_only_matrices_is_accepted(kind: str) -> None:
    model = nn.ModuleList([nn.Linear(3, 3, bias=False)])
    assert [len(group["params"]) for group in build_optimizer(model, params_of(kind)).param_groups] == [1]


@pytest.mark.parametrize("fraction", [0.0, 0.25, 1.0])
def test_each_group_gets_its_own_peak_rate_times_the_schedule_fraction(fraction: float) -> None:
    model = encoder()
    optimizer = build_optimizer(model, params_of("muon"))
    scale_learning_rates(optimizer, 0.5)
    scale_learning_rates(optimizer, fraction)
    assert group_of(optimizer, model.layers[0]["up"].weight)["lr"] == MATRIX_LEARNING_RATE * fraction
    assert group_of(optimizer, model.embedding.weight)["lr"] == LEARNING_RATE * fraction
    assert group_of(optimizer, model.decoder.bias)["lr"] == LEARNING_RATE * fraction


def test_an_external_optimizer_uses_its_initial_rate_as_peak() -> None:
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
def test_every_optimizer_learns_a_toy_task(kind: str) -> None:
    model = encoder()
    optimizer = build_optimizer(model, params_of(kind, weight_decay=0.0))
    first = train(model, optimizer, 1)
    assert train(model, optimizer, 150) < first / 10


@pytest.mark.parametrize("kind", KINDS)
def test_only_parameters_with_a_gradient_change(kind: str) -> None:
    model = encoder()
    before = copy.deepcopy(model.state_dict())
    optimizer = build_optimizer(model, params_of(kind))
    model.layers[0]["up"](torch.ones(2, 8)).sum().backward()
    optimizer.step()
    assert torch.equal(model.head.weight, before["head.weight"])
    assert not torch.equal(model.layers[0]["up"].weight, before["layers.0.up.weight"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_does_not_change_the_gradients(kind: str) -> None:
    model = encoder()
    optimizer = build_optimizer(model, params_of(kind))
    functional.cross_entropy(model(torch.arange(11)), torch.arange(11)).backward()
    before = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    optimizer.step()
    after = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_does_not_change_the_random_state(kind: str) -> None:
    model = encoder()
    optimizer = build_optimizer(model, params_of(kind))
    before = torch.get_rng_state()
    train(model, optimizer, 2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumed_from_a_checkpoint_ends_with_the_same_bytes(kind: str) -> None:
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
def test_a_step_with_a_closure_returns_its_loss(kind: str) -> None:
    model = encoder()
    optimizer = build_optimizer(model, params_of(kind))

    def closure() -> Tensor:
        loss = model(torch.arange(11)).square().mean()
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0


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


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_uses_its_share_of_the_learning_rate(kind: str) -> None:
    model = encoder()
    shares = {id(parameter): 0.5 for parameter in model.layers[0].parameters()}
    alike = build_optimizer(model, params_of(kind))
    optimizer = build_optimizer(model, params_of(kind), lambda parameter: shares.get(id(parameter), 1.0))
    for each in (optimizer, alike):
        scale_learning_rates(each, 0.3)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    usual = {id(p): group["lr"] for group in alike.param_groups for p in group["params"]}
    assert rates == {key: pytest.approx(rate * shares.get(key, 1.0)) for key, rate in usual.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_learning_rate_share_of_1_changes_nothing(kind: str) -> None:
    weights = []
    for rate_of in (None, lambda parameter: 1.0):
        model = encoder()
        train(model, build_optimizer(model, params_of(kind), rate_of), 1)
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    torch.testing.assert_close(*weights, rtol=0, atol=0)


FALLING = sorted(set(DECAYS) - {"constant"})


def schedule(decay: str, total_steps: int = 110, warmup_steps: int = 10, **values: float) -> Schedule:
    given = {
        "warmup_fraction": warmup_steps / total_steps,
        "initial_fraction": 0.0,
        "final_fraction": 0.1,
        "power": 2.0,
        "decay_fraction": 0.2,
        **values,
    }
    return Schedule(ScheduleParams(decay=decay, **given), total_steps)


def test_every_decay_of_params_exists() -> None:
    assert set(DECAYS) == set(typing.get_args(ScheduleParams.model_fields["decay"].annotation))


@pytest.mark.parametrize("decay", sorted(DECAYS))
def test_warm_up_rises_by_equal_steps_to_the_peak_and_wastes_no_step_at_zero(decay: str) -> None:
    fractions = [schedule(decay).fraction(step) for step in range(10)]
    assert fractions == pytest.approx([0.1 * (step + 1) for step in range(10)])


@pytest.mark.parametrize(("fraction", "total_steps", "steps"), [(0.0238, 6300, 150), (0.0238, 50, 1), (1.0, 8, 8)])
def test_warm_up_is_a_share_of_the_steps(fraction: float, total_steps: int, steps: int) -> None:
    assert Schedule.linear_to_zero(fraction, total_steps).warmup_steps == steps


def test_warm_up_rises_from_its_initial_fraction() -> None:
    warm = schedule("cosine", initial_fraction=0.5)
    assert [warm.fraction(step) for step in range(10)] == pytest.approx([0.5 + 0.05 * (step + 1) for step in range(10)])


@pytest.mark.parametrize("decay", sorted(DECAYS))
def test_without_warm_up_the_first_step_is_at_the_peak(decay: str) -> None:
    assert schedule(decay, warmup_steps=0).fraction(0) == 1.0


@pytest.mark.parametrize("decay", FALLING)
def test_the_rate_falls_from_the_peak_to_its_final_fraction_at_the_last_step(decay: str) -> None:
    falling = schedule(decay)
    assert falling.fraction(10) == 1.0
    assert falling.fraction(109) == pytest.approx(0.1)
    assert falling.fraction(500) == pytest.approx(0.1)


@pytest.mark.parametrize("decay", ["cosine", "linear", "polynomial"])
def test_the_last_warm_up_step_and_the_first_decay_step_are_at_the_peak(decay: str) -> None:
    falling = schedule(decay)
    assert [step for step in range(110) if falling.fraction(step) == 1.0] == [9, 10]


@pytest.mark.parametrize("decay", sorted(DECAYS))
def test_the_rate_never_rises_after_warm_up(decay: str) -> None:
    falling = schedule(decay)
    fractions = [falling.fraction(step) for step in range(9, 110)]
    assert all(before >= after for before, after in pairwise(fractions))


@pytest.mark.parametrize(
    ("decay", "left"),
    [
        ("cosine", (1 + math.cos(math.pi / 4)) / 2),
        ("linear", 0.75),
        ("polynomial", 0.75**2),
        ("constant", 1.0),
        ("wsd", 1.0),
    ],
)
def test_after_a_quarter_of_the_decay_the_rate_matches_the_formula(decay: str, left: float) -> None:
    assert schedule(decay, total_steps=111).fraction(35) == pytest.approx(0.1 + 0.9 * left)


def test_a_constant_rate_stays_at_the_peak_to_the_end() -> None:
    assert {schedule("constant").fraction(step) for step in range(9, 110)} == {1.0}


def test_wsd_is_constant_until_its_decay_share_and_then_follows_one_minus_the_root() -> None:
    wsd = schedule("wsd", total_steps=200, final_fraction=0.0, decay_fraction=0.5)
    assert {wsd.fraction(step) for step in range(9, 100)} == {1.0}
    falling = [wsd.fraction(step) for step in range(100, 200)]
    assert falling == pytest.approx([1 - math.sqrt((place + 1) / 100) for place in range(100)])


def test_wsd_whose_decay_would_start_inside_warm_up_starts_after_it() -> None:
    wsd = schedule("wsd", total_steps=20, decay_fraction=0.9)
    assert wsd.fraction(9) == wsd.fraction(10) == 1.0
    assert wsd.fraction(11) < 1.0


@pytest.mark.parametrize("decay", sorted(DECAYS))
def test_a_budget_with_only_warm_up_has_no_decay(decay: str) -> None:
    assert [schedule(decay, total_steps=10).fraction(step) for step in range(10)][-1] == 1.0


@pytest.mark.parametrize("decay", sorted(DECAYS))
def test_the_schedule_depends_only_on_step_and_params(decay: str) -> None:
    """P27: batches, micro-batches and devices are not arguments, and a second call is equal."""
    assert list(inspect.signature(Schedule).parameters) == ["params", "total_steps"]
    assert list(inspect.signature(Schedule.fraction).parameters) == ["self", "step"]
    forwards = [schedule(decay).fraction(step) for step in range(110)]
    assert forwards == [schedule(decay).fraction(step) for step in reversed(range(110))][::-1]


def test_the_fine_tuning_rate_warms_up_and_falls_linearly_to_zero() -> None:
    linear = Schedule.linear_to_zero(warmup_fraction=0.3, total_steps=7)
    fractions = [linear.fraction(step) for step in range(7)]
    assert fractions == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0])
