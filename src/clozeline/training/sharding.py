"""Weights and optimizer states that are divided among processes (FSDP2).

A module of its own because torch's parts for it take a second to import, and most runs divide nothing.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as whole
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

_WHOLE = whole.StateDictOptions(full_state_dict=True, cpu_offload=True)


def divided(module: nn.Module) -> nn.Module:
    """Divide the layers of `module`, then the rest of it."""
    # Inner lists first: a layer that is divided already stays so when the outer one is divided.
    for layers in reversed([inner for inner in module.modules() if isinstance(inner, nn.ModuleList)]):
        for layer in layers:
            fully_shard(layer)
    fully_shard(module)
    return module


@contextlib.contextmanager
def unsynchronized(module: object) -> Iterator[None]:
    """Keep the gradients of a backward pass in this process."""
    assert isinstance(module, FSDPModule)
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


def whole_states(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    return whole.get_state_dict(model, optimizer, options=_WHOLE)


def whole_weights(model: nn.Module) -> dict[str, Any]:
    """Return each weight once: tied ones under their first name."""
    weights = whole.get_model_state_dict(model, options=_WHOLE)
    tied = dict(model.named_parameters(remove_duplicate=False)).keys() - dict(model.named_parameters()).keys()
    return {name: weight for name, weight in weights.items() if name not in tied}


def restore_whole(
    model: nn.Module, optimizer: torch.optim.Optimizer, model_state: dict[str, Any], optimizer_state: dict[str, Any]
) -> None:
    """Divide what `whole_states` returned among the processes."""
    whole.set_state_dict(
        model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state, options=_WHOLE
    )


def gathered(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: weight.full_tensor().cpu() if isinstance(weight, DTensor) else weight for name, weight in weights.items()
    }


def divided_like(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Divide what `gathered` returned as the weights of `model` are divided."""
    like = model.state_dict()
    return {name: _divided(weight, like[name]) for name, weight in weights.items()}


def _divided(weight: Tensor, like: Tensor) -> Tensor:
    return distribute_tensor(weight, like.device_mesh, like.placements) if isinstance(like, DTensor) else weight
