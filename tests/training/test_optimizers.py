"""Every optimizer: its formula, which of a model's parameters it changes and at which rate, and its way through a
checkpoint; and the schedule of the learning rate. Shapes: B rows, H hidden.
"""

import inspect
import io
import math
import typing
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clozeline.encoder.families import FAMILIES
from clozeline.encoder.families.layout import TokenIds
from clozeline.language import models
from clozeline.params.model import OptimizerParams, ScheduleParams
from clozeline.system.errors import ParamsError
from clozeline.training.optimizers import DECAYS, OPTIMIZERS, Schedule, build_optimizer, scale_learning_rates
from tests.training.prepared import changed

LEARNING_RATE, MATRIX_LEARNING_RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.02, 0.9, 0.98, 1e-6, 0.1
of_each_kind = pytest.mark.parametrize("kind", sorted(OPTIMIZERS))


def params_of(kind: str, weight_decay: float = DECAY) -> OptimizerParams:
    return OptimizerParams(
        kind=kind,
        learning_rate=LEARNING_RATE,
        matrix_learning_rate=MATRIX_LEARNING_RATE if kind == "muon" else None,
        beta1=BETA1,
        beta2=BETA2,
        epsilon=EPSILON,
        weight_decay=weight_decay,
        clip_norm=1.0,
    )


class Encoder(nn.Module):
    """Embeddings tied to a decoder, layers with matrices, norms, biases and an embedding, a head, a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"up": nn.Linear(8, 12), "norm": nn.LayerNorm(12), "down": nn.Linear(12, 8, bias=False)})
            for _ in range(2)
        )
        self.layers[1]["positions"] = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 8)
        self.decoder = nn.Linear(8, 11)
        self.decoder.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.zeros(3, 3), requires_grad=False)

    def forward(self, ids_B: Tensor) -> Tensor:
        hidden_BH = self.embedding(ids_B) + self.layers[1]["positions"](ids_B)
        for layer in self.layers:
            hidden_BH = hidden_BH + layer["down"](torch.relu(layer["norm"](layer["up"](hidden_BH))))
        return self.decoder(self.head(hidden_BH))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int) -> None:
    """Train the model to predict 3t + 1 after token t."""
    ids_B = torch.arange(11)
    for _ in range(num_steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(ids_B), (3 * ids_B + 1) % 11).backward()
        optimizer.step()


def group_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, object]:
    (found,) = [group for group in optimizer.param_groups if any(parameter is member for member in group["params"])]
    return found


def test_every_optimizer_and_every_decay_of_params_exists() -> None:
    assert set(OPTIMIZERS) == set(typing.get_args(OptimizerParams.model_fields["kind"].annotation))
    assert set(DECAYS) == set(typing.get_args(ScheduleParams.model_fields["decay"].annotation))


@of_each_kind
def test_every_trained_parameter_including_tied_ones_is_in_one_group(kind: str) -> None:
    """P24: only matrices have weight decay."""
    model = Encoder()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = build_optimizer(model, params_of(kind))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(trained)
    for parameter in trained:
        assert group_of(optimizer, parameter)["weight_decay"] == (DECAY if parameter.ndim == 2 else 0.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_every_family_only_norms_and_biases_have_no_weight_decay(family: str, tiny_pretraining) -> None:
    """P24."""
    shape = changed(tiny_pretraining, model__family=family).model
    model = models.build(shape, "mlm", TokenIds(64, pad_id=0, cls_id=2, sep_id=3), seed=0)
    groups = build_optimizer(model, params_of("adamw")).param_groups
    decaying = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    of_norms = {id(one) for part in model.modules() if isinstance(part, nn.LayerNorm) for one in part.parameters()}
    biases = {id(parameter) for name, parameter in model.named_parameters() if name.endswith("bias")}
    assert decaying == {id(parameter) for parameter in model.parameters()} - of_norms - biases


def test_only_matrices_inside_layers_that_are_no_embeddings_are_hidden_matrices_for_muon() -> None:
    model = Encoder()
    optimizer = build_optimizer(model, params_of("muon"))
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    hidden = {name for name, parameter in trained if group_of(optimizer, parameter)["is_hidden"]}
    assert hidden == {f"layers.{layer}.{name}.weight" for layer in (0, 1) for name in ("up", "down")}
    with pytest.raises(ParamsError, match="ModuleList"):
        build_optimizer(nn.Linear(3, 3), params_of("muon"))


@of_each_kind
def test_a_parameter_learns_at_its_share_of_its_peak_rate_times_the_fraction_of_the_schedule(kind: str) -> None:
    model = Encoder()
    shares = {id(parameter): 0.5 for parameter in model.layers[0].parameters()}
    optimizer = build_optimizer(model, params_of(kind), lambda parameter: shares.get(id(parameter), 1.0))
    scale_learning_rates(optimizer, 0.5)  # a fraction is of the peak, not of the rate before it
    scale_learning_rates(optimizer, 0.3)
    for parameter in (parameter for parameter in model.parameters() if parameter.requires_grad):
        group = group_of(optimizer, parameter)
        peak = MATRIX_LEARNING_RATE if group.get("is_hidden") else LEARNING_RATE
        assert group["lr"] == pytest.approx(peak * 0.3 * shares.get(id(parameter), 1.0))


@of_each_kind
def test_a_run_resumed_from_a_checkpoint_ends_with_the_same_bytes(kind: str) -> None:
    """P29, the optimizer's part."""
    whole, first, second = (Encoder() for _ in range(3))
    optimizers = [build_optimizer(model, params_of(kind)) for model in (whole, first, second)]
    train(whole, optimizers[0], 9)
    scale_learning_rates(optimizers[1], 1.0)
    train(first, optimizers[1], 4)
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizers[1].state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second.load_state_dict(saved["model"])
    optimizers[2].load_state_dict(saved["optimizer"])
    train(second, optimizers[2], 5)
    for name, tensor in whole.state_dict().items():
        assert tensor.numpy().tobytes() == second.state_dict()[name].numpy().tobytes(), name


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


def moments(memory: dict[str, Array], g: Array, t: int) -> tuple[Array, Array]:
    """Return Adam's two moments of the gradient, without their bias."""
    for name, beta, value in (("m", BETA1, g), ("v", BETA2, g * g)):
        memory[name] = beta * memory.get(name, np.zeros_like(g)) + (1 - beta) * value
    return memory["m"] / (1 - BETA1**t), memory["v"] / (1 - BETA2**t)


def adamw(w: Array, g: Array, memory: dict[str, Array], t: int, decay: float) -> Array:
    m, v = moments(memory, g, t)
    return w - LEARNING_RATE * (m / (np.sqrt(v) + EPSILON) + decay * w)


def lamb(w: Array, g: Array, memory: dict[str, Array], t: int, decay: float) -> Array:
    m, v = moments(memory, g, t)
    u = m / (np.sqrt(v) + EPSILON) + decay * w
    trust = np.linalg.norm(w) / np.linalg.norm(u) if w.ndim == 2 else 1.0
    return w - LEARNING_RATE * trust * u


def stableadamw(w: Array, g: Array, memory: dict[str, Array], t: int, decay: float) -> Array:
    m, v = moments(memory, g, t)
    rate = LEARNING_RATE / max(1.0, np.sqrt(np.mean(g * g / np.maximum(v, EPSILON**2))))
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


@of_each_kind
def test_ten_steps_follow_the_formula(kind: str) -> None:
    """Gradients jump at step 6, which is what StableAdamW is for. Two matrices are of one shape."""
    torch.manual_seed(0)
    layer = nn.ModuleList([nn.Linear(6, 4), nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False)])
    idle = nn.Linear(6, 4)  # its weights have no gradient
    before = idle.weight.detach().clone()
    optimizer = build_optimizer(nn.ModuleList([*layer, idle]), params_of(kind))
    formulas = [Formula(FORMULAS[kind], parameter.detach().numpy()) for parameter in layer.parameters()]
    for step in range(10):
        for parameter in layer.parameters():
            parameter.grad = torch.randn_like(parameter) * (30 if step == 6 else 0.1)
        expected = [formula(p.grad.numpy()) for formula, p in zip(formulas, layer.parameters(), strict=True)]
        optimizer.step()
        for parameter, weight in zip(layer.parameters(), expected, strict=True):
            np.testing.assert_allclose(parameter.detach().numpy(), weight, atol=2e-5)
    assert torch.equal(idle.weight, before)


# What is left of the height of each decay after a share of it; `wsd` falls in the last fifth of the steps.
LEFT = {
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "linear": lambda done: 1 - done,
    "polynomial": lambda done: (1 - done) ** 2,
    "constant": lambda done: 1.0,
    "wsd": lambda done: 1 - math.sqrt(max(done - 0.8, 0) / 0.2),
}


def schedule(decay: str, total_steps: int = 110, warmup_steps: int = 10, **values: float) -> Schedule:
    given = {"initial_fraction": 0.0, "final_fraction": 0.1, "power": 2.0, "decay_fraction": 0.2, **values}
    return Schedule(ScheduleParams(decay=decay, warmup_fraction=warmup_steps / total_steps, **given), total_steps)


@pytest.mark.parametrize("decay", LEFT)
def test_the_rate_rises_by_equal_steps_to_the_peak_and_follows_its_decay_to_the_last_step(decay: str) -> None:
    """No step is wasted at zero; the last step of warm-up and the first of the decay are at the peak."""
    rate = schedule(decay)
    assert [rate.fraction(step) for step in range(10)] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    if decay == "wsd":
        rate = schedule(decay, total_steps=101, warmup_steps=0)
        assert [rate.fraction(step) for step in (0, 80)] == [1.0, 1.0]
    first, last = rate.warmup_steps, rate.total_steps - 1
    expected = [0.1 + 0.9 * LEFT[decay]((step - first) / (last - first)) for step in range(first, last + 1)]
    assert [rate.fraction(step) for step in range(first, last + 1)] == pytest.approx(expected)
    assert rate.fraction(500) == rate.fraction(last)
    assert schedule(decay, warmup_steps=0).fraction(0) == schedule(decay, total_steps=10).fraction(9) == 1.0


def test_warm_up_is_a_share_of_the_steps_and_rises_from_its_initial_fraction() -> None:
    """For fine-tuning, the rate then falls to zero in the last step."""
    for fraction, total_steps, steps in ((0.0238, 6300, 150), (0.0238, 50, 1), (1.0, 8, 8)):
        assert Schedule.linear_to_zero(fraction, total_steps).warmup_steps == steps
    linear = Schedule.linear_to_zero(warmup_fraction=0.3, total_steps=7)
    assert [linear.fraction(step) for step in range(7)] == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0])
    warm = schedule("cosine", initial_fraction=0.5)
    assert [warm.fraction(step) for step in (0, 1, 9)] == pytest.approx([0.55, 0.6, 1.0])
    wsd = schedule("wsd", total_steps=20, decay_fraction=0.9)
    assert wsd.fraction(9) == wsd.fraction(10) == 1.0 > wsd.fraction(11), "its decay starts after warm-up"


@pytest.mark.parametrize("decay", LEFT)
def test_the_schedule_depends_only_on_step_and_params(decay: str) -> None:
    """P27: batches, micro-batches and devices are not arguments, and a second call is equal."""
    assert list(inspect.signature(Schedule).parameters) == ["params", "total_steps"]
    assert list(inspect.signature(Schedule.fraction).parameters) == ["self", "step"]
    forwards = [schedule(decay).fraction(step) for step in range(110)]
    assert forwards == [schedule(decay).fraction(step) for step in reversed(range(110))][::-1]
