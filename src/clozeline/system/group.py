"""Processes that do one stage together, started by `torchrun`: what they tell each other, and whether they match.

Before the first step, machines that work together are checked for the same programs, inputs and folder. Messages name
them as `NAME (process RANK)`.
"""

import os
import platform
import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Self, TypeVar
from uuid import uuid4

import torch
from torch import Tensor, distributed

from clozeline.system import errors, machine

Value = TypeVar("Value")
# Time that the others wait for the first process, which compares texts and writes files at the end of a stage.
_LONGEST_WRITE = timedelta(hours=6)

_PACKAGES = ("clozeline", "torch", "transformers")


@dataclass(frozen=True)
class Group:
    """The processes of a stage, seen from one of them."""

    rank: int
    world_size: int
    device: torch.device
    on_this_machine: int = 1  # number of processes that share the cores of this machine

    @classmethod
    def join(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return one process alone, or the processes that `torchrun` describes in the environment."""
        local_rank = int(environment.get("LOCAL_RANK", 0))
        device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
        world_size = int(environment.get("WORLD_SIZE", 1))
        if world_size == 1:
            return cls(0, 1, device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        is_new = not distributed.is_initialized()
        if is_new:
            distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        group = cls(int(environment["RANK"]), world_size, device, int(environment.get("LOCAL_WORLD_SIZE", 1)))
        if is_new:
            check_versions(group)
        return group

    @classmethod
    def alone(cls) -> Self:
        return cls(0, 1, torch.device("cpu"))

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and logs."""
        return self.rank == 0

    @property
    def name(self) -> str:
        """Machine and rank, for messages."""
        return f"{socket.gethostname()} (process {self.rank})"

    @property
    def num_threads(self) -> int:
        """This process's share of the cores that it may use."""
        return max(machine.available_cores() // self.on_this_machine, 1)

    def has(self, number: int) -> bool:
        """Return whether part `number` of the work is this process's."""
        return number % self.world_size == self.rank

    def of_each(self, value: Value) -> list[Value]:
        """Return the values of all processes, ordered by rank. Every process must call it."""
        values = [value]
        if self.world_size > 1:
            values *= self.world_size
            distributed.all_gather_object(values, value)
        return values

    def of_the_first(self, value: Value) -> Value:
        """Return the first process's value, where each may have found another. Every process must call it."""
        values = [value]
        if self.world_size > 1:
            distributed.broadcast_object_list(values, src=0, device=self.device)
        return values[0]

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over all processes."""
        if self.world_size > 1:
            distributed.all_reduce(values)
        return values

    def any(self, is_so: bool) -> bool:
        """Return whether `is_so` is true in any process. Every process must call it."""
        if self.world_size == 1:
            return is_so
        flag = torch.tensor(float(is_so), device=self.device)
        distributed.all_reduce(flag, distributed.ReduceOp.MAX)
        return bool(flag.item())

    def wait(self) -> None:
        if self.world_size > 1:
            distributed.barrier()


def leave() -> None:
    """Wait until every process is done, and leave the group: a machine that has nothing to write stays until the end.

    torchrun on that machine would otherwise wait 5 minutes for the others, and then end as if all were done.
    """
    if distributed.is_initialized():
        distributed.barrier(distributed.new_group(backend="gloo", timeout=_LONGEST_WRITE))
        distributed.destroy_process_group()


# One process on the CPU.
ALONE = Group.alone()


def check_versions(group: Group) -> None:
    """Check that all processes run the same Python and packages. Every process must call it.

    Raises:
        ArtifactError: they do not; the message names the machines.
    """
    own = ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in _PACKAGES)])
    _check_alike(
        group.of_each((group.name, own)),
        "machines that work together have different programs",
        do="install the same requirements.lock on every machine (`make run`, or the same image)",
    )


def agreed(group: Group, work: Path, fingerprint: str) -> str:
    """Return the fingerprint of a training that keeps its checkpoints in `work`. Every process must call it.

    Raises:
        ArtifactError: the processes found different ones, or do not share `work`; the message names the machines.
    """
    _check_alike(
        group.of_each((group.name, f"fingerprint {fingerprint}")),
        "machines would train different things together",
        do="give them the same params.yaml, inputs, code and kind of device, by sharing the project's folder; set "
        "`num_threads` if their CPUs have different numbers of cores",
    )
    check_shared(group, work)
    return fingerprint


def check_shared(group: Group, folder: Path) -> None:
    """Check that all processes see one `folder`, which is made if it is missing. Every process must call it.

    Raises:
        ArtifactError: a machine does not see what the first process wrote there.
    """
    if group.world_size == 1:
        return
    mark = folder / f".seen-{group.of_the_first(uuid4().hex)}"
    if group.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
    group.wait()
    seen = group.of_each((group.name, mark.exists()))
    if group.is_first:
        mark.unlink()
    if blind := [name for name, sees in seen if not sees]:
        raise errors.ArtifactError(
            f"{folder} is not shared by the machines: {', '.join(blind)} cannot see a file of {seen[0][0]}",
            do=f"put the project on a file system that all of them mount (NFS, or a volume), and run in {Path.cwd()}",
        )


def _check_alike(found: Sequence[tuple[str, str]], problem: str, *, do: str) -> None:
    """Raise if the second values of `found`, a pair for each process, differ."""
    names_of: dict[str, list[str]] = defaultdict(list)
    for name, value in found:
        names_of[value].append(name)
    if len(names_of) > 1:
        differing = "; ".join(f"{value}: {', '.join(names)}" for value, names in names_of.items())
        raise errors.ArtifactError(f"{problem}: {differing}", do=do)
