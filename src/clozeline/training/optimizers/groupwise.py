"""Base of our own optimizers: a step is a step of each group that has gradients."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clozeline.training.optimizers.groups import Group


class GroupwiseOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer that changes one group at a time.

    Everything a step depends on is in `state` and `param_groups`, so that a checkpoint's `state_dict` holds it whole.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                group["step"] = group.get("step", 0) + 1
                self._step_group(group, parameters, [parameter.grad for parameter in parameters])
        return loss

    @abstractmethod
    def _step_group(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Update `parameters` in place from `gradients`, which stay unchanged; `group["step"]` counts from 1."""

    def _zeros(self, name: str, parameters: list[Tensor]) -> list[Tensor]:
        """Return the state `name` of each parameter, of its shape; zeros at the first step."""
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return [self.state[parameter][name] for parameter in parameters]
