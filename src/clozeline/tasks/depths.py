"""How deep in an encoder each weight is: what lies low knows language, what lies high knows the last task."""

from collections.abc import Callable, Iterator

from torch import nn

from clozeline.encoder.model import Model
from clozeline.errors import ParamsError
from clozeline.tasks.heads import TaskModel

_EMBEDDINGS = 0


def layers_of(model: TaskModel) -> nn.ModuleList:
    """The repeated layers, lowest first; ALBERT's, which are all the same one, are one."""
    if isinstance(model, Model):
        return model.encoder.layers
    wanted = int(model.config.num_hidden_layers)
    found = [inner for inner in model.base_model.modules() if isinstance(inner, nn.ModuleList) and len(inner) == wanted]
    assert found, f"{type(model).__name__} keeps its layers in no ModuleList"
    return found[0]


def depth_of_each(model: TaskModel) -> dict[int, int]:
    """`id` of a parameter → 0 for embeddings, 1 for the lowest layer, …, one more than the layers for the head."""
    layers = layers_of(model)
    in_layer = {id(parameter): place for place, layer in enumerate(layers, start=1) for parameter in layer.parameters()}
    in_embeddings = {id(parameter) for parameter in _embedding_parameters(model)}
    top = len(layers) + 1
    return {
        id(parameter): in_layer.get(id(parameter), _EMBEDDINGS if id(parameter) in in_embeddings else top)
        for parameter in model.parameters()
    }


def freeze(model: TaskModel, num_layers: int) -> None:
    """Embeddings and the lowest `num_layers` stay as they are; nothing is computed for them in a backward pass.

    Raises:
        ParamsError: the encoder has fewer layers.
    """
    most = len(layers_of(model))
    if num_layers > most:
        raise ParamsError(
            "params.yaml: `frozen_layers` of the task is more than the encoder has",
            given=num_layers,
            expected=f"at most {most}, or null: every weight is trained",
            do="lower it",
        )
    depths = depth_of_each(model)
    for parameter in model.parameters():
        if depths[id(parameter)] <= num_layers:
            parameter.requires_grad_(False)


def rate_by_depth(model: TaskModel, layer_decay: float) -> Callable[[nn.Parameter], float]:
    """Of a parameter's learning rate, by its depth: 1 for the head, and `layer_decay` times as much in each layer as in
    the one above it (Howard & Ruder 2018, section 3.2, discriminative fine-tuning).
    """
    depths = depth_of_each(model)
    top = len(layers_of(model)) + 1
    return lambda parameter: layer_decay ** (top - depths[id(parameter)])


def _embedding_parameters(model: TaskModel) -> Iterator[nn.Parameter]:
    """Those of the encoder that its families name so: tables, their norm, and what brings them to the layers' width."""
    for name, parameter in model.base_model.named_parameters():
        if "embedding" in name:
            yield parameter
