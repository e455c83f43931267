"""Which parameters decay, and the optimizer over them."""

import torch
from torch import nn

from clozeline.params import OptimizerParams


def build_adamw(model: nn.Module, params: OptimizerParams) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019, algorithm 2); matrices decay, vectors (norms, biases) do not.

    A tied weight is one parameter and is in one group once: `Module.parameters` yields it once.
    """
    matrices = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.ndim < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": params.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=params.learning_rate,
        betas=(params.beta1, params.beta2),
        eps=params.epsilon,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
