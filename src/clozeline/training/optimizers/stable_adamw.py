"""StableAdamW: AdamW with shorter steps where the second moment lags behind a jump of the gradient."""

from torch import Tensor

from clozeline.training.optimizers.groups import Group
from clozeline.training.optimizers.groupwise import GroupwiseOptimizer


class StableAdamW(GroupwiseOptimizer):
    """Wortsman et al. 2023, algorithm 2: in each tensor, η = lr / max(1, √mean(g² / max(v, epsilon²)));
    w ← w - η·decay·w - η·m / (√v + epsilon), with the bias correction in the betas.
    """

    def _step_group(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        beta1, beta2 = (_debiased(beta, group["step"]) for beta in group["betas"])
        firsts, seconds = self._zeros("exp_avg", parameters), self._zeros("exp_avg_sq", parameters)
        for parameter, gradient, first, second in zip(parameters, gradients, firsts, seconds, strict=True):
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            rate = group["lr"] / _root_mean_square(gradient, second, group["eps"]).clamp(min=1)
            update = first / second.sqrt().add_(group["eps"])
            parameter.sub_(update.add_(parameter, alpha=group["weight_decay"]).mul_(rate))


def _debiased(beta: float, step: int) -> float:
    """Return the debiased decay rate for `step`: the moving average then needs no bias correction; 0 at step 1."""
    return beta * (1 - beta ** (step - 1)) / (1 - beta**step)


def _root_mean_square(gradient: Tensor, second: Tensor, epsilon: float) -> Tensor:
    """Return how much larger the gradient is than the second moment predicts."""
    return (gradient.square() / second.clamp(min=epsilon**2)).mean().sqrt()
