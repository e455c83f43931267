"""LAMB: Adam with steps that are scaled, in each tensor, by the tensor's own norm."""

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
        firsts, seconds = self._zeros("exp_avg", parameters), self._zeros("exp_avg_sq", parameters)
        for parameter, gradient, first, second in zip(parameters, gradients, firsts, seconds, strict=True):
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            denominator = (second / (1 - beta2 ** group["step"])).sqrt_().add_(group["eps"])
            update = (first / (1 - beta1 ** group["step"])).div_(denominator)
            update.add_(parameter, alpha=group["weight_decay"])
            parameter.add_(update.mul_(_trust_ratio(parameter, update)), alpha=-group["lr"])


def _trust_ratio(parameter: Tensor, update: Tensor) -> Tensor:
    """Return ‖w‖/‖u‖; 1 for vectors, and where a norm is zero."""
    if parameter.ndim < 2:
        return torch.ones((), device=parameter.device)
    norm, update_norm = parameter.norm(), update.norm()
    return torch.where((norm > 0) & (update_norm > 0), norm / update_norm, 1.0)
