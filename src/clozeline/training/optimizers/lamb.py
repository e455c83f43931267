"""LAMB: Adam whose step, in each tensor, is as long as the learning rate says in units of the tensor's own norm."""

import torch
from torch import Tensor

from clozeline.training.optimizers.groups import Group
from clozeline.training.optimizers.groupwise import GroupwiseOptimizer


class Lamb(GroupwiseOptimizer):
    """You et al. 2020, algorithm 2, with the identity for φ: u = m̂ / (√v̂ + epsilon) + decay·w;  w ← w - lr·‖w‖/‖u‖·u.

    Vectors (norms, biases) take plain Adam steps, as in the authors' code: a bias is zero at the start, and a step in
    units of its norm would never leave it.
    """

    def _step_group(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        first, second = self._zeros("exp_avg", parameters), self._zeros("exp_avg_sq", parameters)
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
        denominators = torch._foreach_div(second, 1 - beta2 ** group["step"])
        torch._foreach_sqrt_(denominators)
        torch._foreach_add_(denominators, group["eps"])
        updates = torch._foreach_div(first, 1 - beta1 ** group["step"])
        torch._foreach_div_(updates, denominators)
        torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        torch._foreach_mul_(updates, [_trust_ratio(*pair) for pair in zip(parameters, updates, strict=True)])
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])


def _trust_ratio(parameter: Tensor, update: Tensor) -> Tensor:
    """‖w‖/‖u‖; 1 for vectors, and where a norm is zero."""
    if parameter.ndim < 2:
        return torch.ones((), device=parameter.device)
    norm, update_norm = parameter.norm(), update.norm()
    return torch.where((norm > 0) & (update_norm > 0), norm / update_norm, 1.0)
