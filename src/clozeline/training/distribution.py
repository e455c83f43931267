"""Training on several devices or machines, with torch's own engines, started by `torchrun`.

Each process takes its share of the rows of every batch. Batches do not depend on the number of processes, and gradients
are summed over all of them, so N processes do the same as one with the same params. FSDP2 divides weights and optimizer
states among them (sharding.py).
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from clozeline.system import errors, group
from clozeline.training.state import Scored

Sharding = Literal["ddp", "fsdp"]


class Movable(Protocol):
    def to(self, device: torch.device) -> object: ...


@dataclass(frozen=True)
class Processes(group.Group):
    """The processes that train together, seen from one of them."""

    sharding: Sharding = "ddp"

    @classmethod
    def join(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return one process alone, or the processes that `torchrun` describes in the environment.

        `CLOZELINE_SHARDING=fsdp` there also divides weights and optimizer state among them (FSDP2), for models that do
        not fit on one device. Otherwise each process has the whole model (DDP).
        """
        given = environment.get("CLOZELINE_SHARDING", "ddp")
        if given not in get_args(Sharding):
            raise errors.ParamsError(
                f"CLOZELINE_SHARDING is {given}, not ddp (a whole model on each device) or fsdp (shared)",
                do="correct this environment variable, or unset it",
            )
        return replace(super().join(environment), sharding=cast(Sharding, given))

    def check(self, optimizer: str) -> None:
        """Refuse an optimizer that cannot work on divided weights.

        Raises:
            ParamsError: `optimizer` needs whole matrices, which no process would have.
        """
        if optimizer == "muon" and self.sharding == "fsdp" and self.world_size > 1:
            raise errors.ParamsError(
                "`optimizer.kind` muon needs whole matrices, which CLOZELINE_SHARDING=fsdp divides",
                do="choose `adamw`, or set CLOZELINE_SHARDING=ddp",
            )

    @property
    def divides_weights(self) -> bool:
        """Whether each process holds only a part of the weights."""
        return self.world_size > 1 and self.sharding == "fsdp"

    def wrap(self, module: nn.Module, smallest: Callable[[], Movable]) -> nn.Module:
        """Return `module` with gradients that are summed over all processes at the end of a backward pass.

        `smallest`: returns an input of `module`, which shows the weights that the loss depends on.
        """
        if self.world_size == 1:
            return module
        if self.sharding == "fsdp":
            divided: nn.Module = self._engine.divided(module)
            return divided
        # DDP waits for the gradient of every weight; searching for weights without one costs each step a little.
        has_idle = _has_idle_weights(module, smallest().to(self.device))
        return DistributedDataParallel(module, forward_sync_buffers=False, find_unused_parameters=has_idle)

    def one_sum(self, module: object, is_last: bool) -> AbstractContextManager[None]:
        """Return the context of a backward pass: only the last micro-batch sums gradients over the processes."""
        if is_last or self.world_size == 1:
            return contextlib.nullcontext()
        if isinstance(module, DistributedDataParallel):
            return module.no_sync()
        unsynchronized: AbstractContextManager[None] = self._engine.unsynchronized(module)
        return unsynchronized

    def states(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the whole states of `model` and `optimizer`, even if divided. Every process must call it."""
        if not self.divides_weights:
            return model.state_dict(), optimizer.state_dict()
        states: tuple[dict[str, Any], dict[str, Any]] = self._engine.whole_states(model, optimizer)
        return states

    def divided_weights(self, model: nn.Module) -> dict[str, Any] | None:
        """Return all weights of a divided model; None if it is not divided. Every process must call it."""
        return self._engine.whole_weights(model) if self.divides_weights else None

    def put_together(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gather divided weights. Every process must call it."""
        return self._engine.gathered(weights) if self.divides_weights else dict(weights)

    def divide(self, weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        """Divide what `put_together` returned as the weights of `model` are divided. Every process must call it."""
        return self._engine.divided_like(weights, model) if self.divides_weights else dict(weights)

    def restore(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        model_state: dict[str, Any],
        optimizer_state: dict[str, Any],
    ) -> None:
        """Restore `model` and `optimizer` from what `states` returned, for any number of processes."""
        if self.divides_weights:
            self._engine.restore_whole(model, optimizer, model_state, optimizer_state)
            return
        model.load_state_dict(model_state)
        optimizer.load_state_dict(optimizer_state)

    @property
    def _engine(self) -> Any:
        """FSDP2, which takes a second to import."""
        from clozeline.training import sharding

        return sharding


def _has_idle_weights(module: nn.Module, inputs: object) -> bool:
    """Return whether the loss ignores some weights: an unused pooler, or global attention without global tokens."""
    Scored.of(module(inputs)).loss_sum.backward()
    has_idle = any(weight.requires_grad and weight.grad is None for weight in module.parameters())
    module.zero_grad()
    return has_idle
