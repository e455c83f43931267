"""Depth of each weight in an encoder. Low layers hold knowledge of language, high layers that of the last task."""

from collections.abc import Callable, Iterator

from torch import nn

from clozeline.encoder.model import Model
from clozeline.encoder.own import OwnModel
from clozeline.errors import ParamsError
from clozeline.tasks.heads import TaskModel

_EMBEDDINGS = 0


def layers_of(model: TaskModel) -> nn.ModuleList:
    """Return the repeated layers, lowest first. ALBERT shares one layer, so it has one.

    Raises:
        ParamsError: it is your own encoder, and has no `ModuleList`.
    """
    if isinstance(model, Model):
        return model.encoder.layers
    if isinstance(model, OwnModel):
        return _layers_of_own(model)
    wanted = int(model.config.num_hidden_layers)
    found = [inner for inner in model.base_model.modules() if isinstance(inner, nn.ModuleList) and len(inner) == wanted]
    assert found, f"{type(model).__name__} has no ModuleList of {wanted} layers"
    return found[0]


def _layers_of_own(model: OwnModel) -> nn.ModuleList:
    if model.layers is None:
        raise ParamsError(
            f"`lora`, `frozen_layers`, `layer_decay`: `{model.config.model_params.family}` has no ModuleList of layers",
            do="put the layers into a torch.nn.ModuleList, lowest first, or remove these knobs from the task",
        )
    return model.layers


def depth_of_each(model: TaskModel) -> dict[int, int]:
    """Map `id` of a parameter to its depth: 0 for embeddings, 1 for the lowest layer, …, number of layers + 1 for the
    head.
    """
    layers = layers_of(model)
    in_layer = {id(parameter): place for place, layer in enumerate(layers, start=1) for parameter in layer.parameters()}
    in_embeddings = {id(parameter) for parameter in _embedding_parameters(model)}
    top = len(layers) + 1
    return {
        id(parameter): in_layer.get(id(parameter), _EMBEDDINGS if id(parameter) in in_embeddings else top)
        for parameter in model.parameters()
    }


def freeze(model: TaskModel, num_layers: int) -> None:
    """Freeze the embeddings and the lowest `num_layers` layers; the backward pass skips them.

    Raises:
        ParamsError: the encoder has fewer layers.
    """
    most = len(layers_of(model))
    if num_layers > most:
        raise ParamsError(
            f"`frozen_layers: {num_layers}` of the task exceeds the {most} layers of the encoder",
            do="lower it, or set null to train every weight",
        )
    depths = depth_of_each(model)
    for parameter in model.parameters():
        if depths[id(parameter)] <= num_layers:
            parameter.requires_grad_(False)


def rate_by_depth(model: TaskModel, layer_decay: float) -> Callable[[nn.Parameter], float]:
    """Return the factor of a parameter's learning rate: 1 for the head, and `layer_decay` times that of the layer above
    for each layer (discriminative fine-tuning, Howard & Ruder 2018, section 3.2).
    """
    depths = depth_of_each(model)
    top = len(layers_of(model)) + 1
    return lambda parameter: layer_decay ** (top - depths[id(parameter)])


def _embedding_parameters(model: TaskModel) -> Iterator[nn.Parameter]:
    """Yield parameters with "embedding" in their name: tables, their norm, and the projection to the layers' width."""
    for name, parameter in model.base_model.named_parameters():
        if "embedding" in name:
            yield parameter
