"""NovoGrad: one second moment for each tensor, so that its state takes half the memory of Adam's."""

import torch
from torch import Tensor

from clozeline.training.optimizers.groups import Group
from clozeline.training.optimizers.groupwise import GroupwiseOptimizer


class NovoGrad(GroupwiseOptimizer):
    """Ginsburg et al. 2019, algorithm 1: `v` is the squared norm of a tensor's gradient, smoothed by beta2;
    m ← beta1·m + (g / (√v + epsilon) + decay·w);  w ← w - lr·m.
    """

    def _step_group(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        for parameter, gradient, momentum in zip(
            parameters, gradients, self._zeros("momentum", parameters), strict=True
        ):
            state, square_norm = self.state[parameter], gradient.norm().square()
            # The average starts at the first norm: if it started at zero, the first steps would be too long.
            state["square_norm"] = torch.lerp(state.get("square_norm", square_norm), square_norm, 1 - beta2)
            direction = gradient / (state["square_norm"].sqrt() + group["eps"])
            momentum.mul_(beta1).add_(direction.add_(parameter, alpha=group["weight_decay"]))
            parameter.add_(momentum, alpha=-group["lr"])
