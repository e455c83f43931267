"""StableAdamW: AdamW that takes a shorter step where the second moment lags behind a jump of the gradient."""

import torch
from torch import Tensor

from clozeline.training.optimizers.groups import Group
from clozeline.training.optimizers.groupwise import GroupwiseOptimizer


class StableAdamW(GroupwiseOptimizer):
    """Wortsman et al. 2023, algorithm 2: in each tensor, η = lr / max(1, √mean(g² / max(v, epsilon²)));
    w ← w - η·decay·w - η·m / (√v + epsilon), with the bias correction in the betas.
    """

    def _step_group(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        beta1, beta2 = (_debiased(beta, group["step"]) for beta in group["betas"])
        first, second = self._zeros("exp_avg", parameters), self._zeros("exp_avg_sq", parameters)
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
        rates = [
            group["lr"] / _root_mean_square(gradient, moment, group["eps"]).clamp(min=1)
            for gradient, moment in zip(gradients, second, strict=True)
        ]
        updates = torch._foreach_sqrt(second)
        torch._foreach_add_(updates, group["eps"])
        updates = torch._foreach_div(first, updates)
        torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        torch._foreach_mul_(updates, rates)
        torch._foreach_sub_(parameters, updates)


def _debiased(beta: float, step: int) -> float:
    """The weight of the past that makes a smoothed value an average of all values from step 1 on; 0 at step 1."""
    return beta * (1 - beta ** (step - 1)) / (1 - beta**step)


def _root_mean_square(gradient: Tensor, second: Tensor, epsilon: float) -> Tensor:
    """How much larger the gradient is than what the second moment expects of it."""
    return (gradient.square() / second.clamp(min=epsilon**2)).mean().sqrt()
