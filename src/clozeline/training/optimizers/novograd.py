"""NovoGrad: one second moment for each tensor, so that a step costs half the memory of Adam's."""

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
        momenta = self._zeros("momentum", parameters)
        square_norms = [norm.square() for norm in torch._foreach_norm(gradients)]
        directions = []
        for parameter, gradient, square_norm in zip(parameters, gradients, square_norms, strict=True):
            state = self.state[parameter]
            # The first norm is taken whole: smoothed from zero, the first steps would be too long.
            state["square_norm"] = torch.lerp(state.get("square_norm", square_norm), square_norm, 1 - beta2)
            directions.append(gradient / (state["square_norm"].sqrt() + group["eps"]))
        torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        torch._foreach_mul_(momenta, beta1)
        torch._foreach_add_(momenta, directions)
        torch._foreach_add_(parameters, momenta, alpha=-group["lr"])
