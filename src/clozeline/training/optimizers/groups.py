"""Groups of parameters: with and without weight decay, and hidden matrices."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from clozeline.errors import ParamsError
from clozeline.params import OptimizerParams

Group = dict[str, Any]


def decay_groups(model: nn.Module, params: OptimizerParams) -> list[Group]:
    """Return a group that decays, matrices and embeddings, and one that does not, vectors (norms and biases).

    A tied weight is in one group once, because `Module.parameters` yields it once.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return _decay_groups(trained, params)


def hidden_matrix_groups(model: nn.Module, params: OptimizerParams) -> list[Group]:
    """Return the hidden matrices at `matrix_learning_rate`, marked `is_hidden`, then the rest as in `decay_groups`.

    Hidden are the 2-D weights of the repeated layers, which every encoder keeps in a `ModuleList`. Embeddings, also
    where a decoder is tied to them, and the head are not: their rows are tokens, not directions of a hidden space
    (Jordan et al. 2024).

    Raises:
        ParamsError: the model has no hidden matrix.
    """
    hidden_ids = {id(parameter) for parameter in layer_matrices(model)} - _embedding_ids(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hidden = [parameter for parameter in trained if id(parameter) in hidden_ids]
    if not hidden:
        raise ParamsError(
            f"`optimizer.kind` muon finds no trained matrix in a torch.nn.ModuleList of {type(model).__name__}",
            do="choose `adamw`, or keep the layers of your encoder in a ModuleList",
        )
    rest = [parameter for parameter in trained if id(parameter) not in hidden_ids]
    assert params.matrix_learning_rate is not None, "params demand it for muon"
    matrices = _group(hidden, params.matrix_learning_rate, params.weight_decay)
    groups = [matrices, *_decay_groups(rest, params)]
    return [{**group, "is_hidden": group is matrices} for group in groups]


def by_rate(groups: Sequence[Group], rate_of: Callable[[nn.Parameter], float]) -> list[Group]:
    """Split each group by the share of its learning rate at which parameters learn, the highest first."""
    parts = []
    for group in groups:
        for rate in sorted({rate_of(parameter) for parameter in group["params"]}, reverse=True):
            alike = [parameter for parameter in group["params"] if rate_of(parameter) == rate]
            rates = {key: group[key] * rate for key in ("lr", "peak_lr")}
            parts.append({**group, **rates, "params": alike})
    return parts


def _decay_groups(trained: Sequence[nn.Parameter], params: OptimizerParams) -> list[Group]:
    matrices = [parameter for parameter in trained if parameter.ndim >= 2]
    vectors = [parameter for parameter in trained if parameter.ndim < 2]
    groups = [
        _group(matrices, params.learning_rate, params.weight_decay),
        _group(vectors, params.learning_rate, 0.0),
    ]
    return [group for group in groups if group["params"]]


def _group(parameters: list[nn.Parameter], peak: float, weight_decay: float) -> Group:
    return {"params": parameters, "lr": peak, "peak_lr": peak, "weight_decay": weight_decay}


def layer_matrices(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the 2-D weights of the repeated layers, which every encoder keeps in a ModuleList."""
    for layers in model.modules():
        if isinstance(layers, nn.ModuleList):
            yield from (parameter for parameter in layers.parameters() if parameter.ndim == 2)


def _embedding_ids(model: nn.Module) -> set[int]:
    return {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
