import torch
from torch import nn

from clozeline.params import OptimizerParams
from clozeline.training.optimizer import build_adamw, set_learning_rate

PARAMS = OptimizerParams(learning_rate=0.5, beta1=0.9, beta2=0.98, epsilon=1e-6, weight_decay=0.1, clip_norm=1.0)


class TiedModel(nn.Module):
    """An embedding that is also the decoder's weight, a norm, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.norm = nn.LayerNorm(3)
        self.decoder = nn.Linear(3, 7)
        self.decoder.weight = self.embedding.weight


def test_every_parameter_is_in_one_group_once_a_tied_one_too() -> None:
    model = TiedModel()
    grouped = [id(parameter) for group in build_adamw(model, PARAMS).param_groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())


def test_only_matrices_decay() -> None:
    model = TiedModel()
    decay_of = {
        id(parameter): group["weight_decay"]
        for group in build_adamw(model, PARAMS).param_groups
        for parameter in group["params"]
    }
    assert decay_of[id(model.embedding.weight)] == 0.1
    assert decay_of[id(model.norm.weight)] == decay_of[id(model.norm.bias)] == decay_of[id(model.decoder.bias)] == 0


def test_the_learning_rate_reaches_every_group() -> None:
    optimizer = build_adamw(TiedModel(), PARAMS)
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


def test_a_step_moves_against_the_gradient_by_about_the_learning_rate() -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(2.0)
    optimizer = build_adamw(model, PARAMS.model_copy(update={"weight_decay": 0.0}))
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert torch.allclose(model.weight, torch.tensor([[1.5]]), atol=1e-4)
