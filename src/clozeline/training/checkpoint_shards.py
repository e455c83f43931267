"""Checkpoints of large models: each process writes a share of the tensors, and any number of processes reads them back.

A module of its own because torch's parts for it take a second to import, and few models are that large.
"""

import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

from clozeline.processes.group import Group
from clozeline.storage.fingerprints import sha256_of
from clozeline.training.checkpoint import Checkpoints


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
    of_model, of_optimizer = get_state_dict(model, optimizer)
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
    set_state_dict(model, optimizer, model_state_dict=tensors["model"], optim_state_dict=tensors["optimizer"])
    return tensors["best_weights"] if has_best else None
