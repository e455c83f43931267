"""Muon: orthogonal steps of hidden matrices, so that no direction of the hidden space is starved.

Shapes: K matrices of one shape, R rows, C columns.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from clozeline.training.optimizers.groups import Group
from clozeline.training.optimizers.groupwise import GroupwiseOptimizer

_MOMENTUM = 0.95
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS = 5
_UPDATE_SCALE = 0.2
"""Root mean square of AdamW's updates, as Liu et al. measured it."""
_SMALLEST_NORM = 1e-7


class MuonWithAdamW(GroupwiseOptimizer):
    """Muon for the groups marked `is_hidden`, AdamW (Loshchilov & Hutter 2019, algorithm 2) for the others.

    Muon follows Jordan et al. 2024, with weight decay and the scale of Liu et al. 2025 ("Muon is scalable for LLM
    training", section 2.2): w ← w - lr·(0.2·√max(R, C)·O + decay·w), O = orthogonalize(g + 0.95·b), b ← 0.95·b + g.
    At that scale its updates are as large as AdamW's, so that rates of both are of one magnitude, in any shape.

    It equals `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"` except for what that does not offer. A CPU
    multiplies matrices in fp32 (a step over 2 layers × 128 took 228 ms in bf16 on AVX2 alone, 14 ms in fp32). Matrices
    of one shape are multiplied at once. The other parameters step in the same optimizer.
    """

    def _step_group(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        step = self._step_hidden if group["is_hidden"] else self._step_others
        step(group, parameters, gradients)

    def _step_hidden(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        lookaheads = []
        for parameter, gradient, momentum in zip(
            parameters, gradients, self._zeros("momentum", parameters), strict=True
        ):
            lookaheads.append(gradient.add(momentum.mul_(_MOMENTUM).add_(gradient), alpha=_MOMENTUM))
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
        for places in _places_by_shape(parameters):
            updates_KRC = orthogonalize(torch.stack([lookaheads[place] for place in places]))
            scale = _UPDATE_SCALE * max(updates_KRC.shape[1:]) ** 0.5
            for place, update_RC in zip(places, updates_KRC, strict=True):
                parameters[place].add_(update_RC, alpha=-group["lr"] * scale)

    def _step_others(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        for parameter in parameters:
            if "step" not in self.state[parameter]:
                self.state[parameter]["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        adamw(
            parameters,
            gradients,
            self._zeros("exp_avg", parameters),
            self._zeros("exp_avg_sq", parameters),
            max_exp_avg_sqs=[],
            state_steps=[self.state[parameter]["step"] for parameter in parameters],
            fused=group["fused"],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def orthogonalize(matrices_KRC: Tensor) -> Tensor:
    """Return an approximation of U·Vᵀ for each matrix U·S·Vᵀ, in its dtype: singular values become 0.7 to 1.2.

    Five quintic Newton-Schulz iterations (Jordan et al. 2024): in bf16 on CUDA, as published; in fp32 on a CPU, where
    bf16 can be far slower.
    """
    is_tall = matrices_KRC.shape[1] > matrices_KRC.shape[2]
    x_KRC = matrices_KRC.mT if is_tall else matrices_KRC
    x_KRC = x_KRC.bfloat16() if matrices_KRC.is_cuda else x_KRC.float()
    x_KRC = x_KRC / torch.linalg.matrix_norm(x_KRC, keepdim=True).clamp(min=_SMALLEST_NORM)
    a, b, c = _COEFFICIENTS
    for _ in range(_NUM_ITERATIONS):
        gram_KRR = x_KRC @ x_KRC.mT
        polynomial_KRR = torch.baddbmm(gram_KRR, gram_KRR, gram_KRR, beta=b, alpha=c)
        x_KRC = torch.baddbmm(x_KRC, polynomial_KRR, x_KRC, beta=a)
    return (x_KRC.mT if is_tall else x_KRC).to(matrices_KRC.dtype)


def _places_by_shape(parameters: Iterable[Tensor]) -> Iterable[list[int]]:
    """Return the indices of parameters by shape and device: matrices of one shape are multiplied in one call."""
    places: defaultdict[tuple[torch.Size, torch.device], list[int]] = defaultdict(list)
    for place, parameter in enumerate(parameters):
        places[parameter.shape, parameter.device].append(place)
    return places.values()
