"""Every kind: which of a model's parameters it changes, at which rate, and its way through a checkpoint.

Shapes: B rows, H hidden.
"""

import copy
import io
import typing

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clozeline.encoder.families import FAMILIES
from clozeline.encoder.families.layout import TokenIds
from clozeline.language import models
from clozeline.params.model import OptimizerParams
from clozeline.params.pretraining import PretrainParams
from clozeline.system.errors import ParamsError
from clozeline.training.optimizers import OPTIMIZERS, build_optimizer, scale_learning_rates
from tests.training.changes import changed
from tests.training.optimizer_params import DECAY, KINDS, LEARNING_RATE, MATRIX_LEARNING_RATE, params_of


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
