"""Weights and optimizer states divided among processes (FSDP2), and checkpoints in which each writes its share.

A module of its own because torch's parts for it take a second to import, and most runs divide nothing.
"""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as whole
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from clozeline.system.files import sha256_of
from clozeline.system.group import Group
from clozeline.training.checkpoints import Checkpoints

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
    model: nn.Module, optimizer: torch.optim.Optimizer, model_state: dict[str, Any], optim_state: dict[str, Any]
) -> None:
    """Divide what `whole_states` returned among the processes."""
    whole.set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optim_state, options=_WHOLE)


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


def save(
    checkpoints: Checkpoints, step: int, tensors: Mapping[str, Any], rest: Mapping[str, Any], group: Group
) -> None:
    """Write the state of `step` whole or not at all. Every process must call it.

    Args:
        tensors: what `tensors_of` returned.
        rest: the state without them, in the first process.

    Raises:
        StorageError: the disk is full or read-only; earlier states are unchanged.
    """
    with ExitStack() as stack:
        beside = stack.enter_context(checkpoints.replacing(step)) if group.is_first else None
        folder = group.of_the_first(beside)
        assert folder is not None
        try:
            save_shards(dict(tensors), storage_writer=FileSystemWriter(folder))
        except CheckpointException as error:
            # Each process gets the errors of all, without the disk's own class.
            failed = [cause for cause, _ in error.failures.values() if isinstance(cause, OSError)]
            raise failed[0] if failed else error from error
        own = {file.name: sha256_of(file) for file in folder.glob(f"__{group.rank}_*")}
        hashes = {name: sha256 for of_process in group.of_each(own) for name, sha256 in of_process.items()}
        if beside is not None:
            index = beside / ".metadata"
            checkpoints.seal(beside, rest, {**hashes, index.name: sha256_of(index)})
    group.wait()


def tensors_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, best_weights: Mapping[str, Tensor] | None
) -> dict[str, Any]:
    """Return this process's part of model, optimizer and best weights."""
    of_model, of_optimizer = whole.get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, "best_weights": dict(best_weights or {})}


def restore(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, has_best: bool, group: Group
) -> dict[str, Tensor] | None:
    """Read model and optimizer from `folder`, divided as they are now. Return the best weights; None without them."""
    like = {name: torch.zeros_like(weight) for name, weight in model.state_dict().items()} if has_best else None
    tensors = tensors_of(model, optimizer, like)
    with warnings.catch_warnings():  # that a single process reads alone, which is meant
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load_shards(tensors, storage_reader=FileSystemReader(folder), no_dist=group.world_size == 1)
    whole.set_state_dict(model, optimizer, model_state_dict=tensors["model"], optim_state_dict=tensors["optimizer"])
    return tensors["best_weights"] if has_best else None
