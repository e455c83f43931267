"""Losses of the pairs of a batch.

Shapes: B pairs, H hidden.
"""

import torch
from torch import Tensor
from torch.nn import functional

from clozeline.tasks.similarity.batches import Targets


def each_loss(firsts_BH: Tensor, seconds_BH: Tensor, targets: Targets, temperature: float) -> Tensor:
    """Return `loss_B` for vectors of length 1: `cosine_losses` for scored pairs, else `ranking_losses`."""
    if targets.score_B is not None:
        return cosine_losses(firsts_BH, seconds_BH, targets.score_B)
    return ranking_losses(firsts_BH, seconds_BH, targets, temperature)


def cosine_losses(firsts_BH: Tensor, seconds_BH: Tensor, score_B: Tensor) -> Tensor:
    """Return the squared difference of cosine and score (regression objective, Reimers & Gurevych 2019, section 3)."""
    return ((firsts_BH * seconds_BH).sum(dim=1) - score_B) ** 2


def ranking_losses(firsts_BH: Tensor, seconds_BH: Tensor, targets: Targets, temperature: float) -> Tensor:
    """Return the multiple negatives ranking loss (Henderson et al. 2017, section 4.4), the mean of both directions
    (Radford et al. 2021, section 2.3). Negatives are the other pairs of the batch, except those that share a text.
    """
    cosine_BB = firsts_BH @ seconds_BH.T / temperature
    is_twin_BB = (targets.first_B[:, None] == targets.first_B) | (targets.second_B[:, None] == targets.second_B)
    is_twin_BB = is_twin_BB & ~torch.eye(len(is_twin_BB), dtype=torch.bool, device=is_twin_BB.device)
    cosine_BB = cosine_BB.masked_fill(is_twin_BB, -torch.inf)
    place_B = torch.arange(len(cosine_BB), device=cosine_BB.device)
    there_B = functional.cross_entropy(cosine_BB, place_B, reduction="none")
    back_B = functional.cross_entropy(cosine_BB.T, place_B, reduction="none")
    return (there_B + back_B) / 2
