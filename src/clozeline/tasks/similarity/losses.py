"""What is learned from a batch of pairs, summed over them.

Shapes: B pairs, H hidden.
"""

import torch
from torch import Tensor
from torch.nn import functional

from clozeline.tasks.similarity.batches import Targets


def each_loss(firsts_BH: Tensor, seconds_BH: Tensor, targets: Targets, temperature: float) -> Tensor:
    """`loss_B` of vectors of length 1."""
    if targets.score_B is not None:
        return cosine_losses(firsts_BH, seconds_BH, targets.score_B)
    return ranking_losses(firsts_BH, seconds_BH, targets, temperature)


def cosine_losses(firsts_BH: Tensor, seconds_BH: Tensor, score_B: Tensor) -> Tensor:
    """Squared difference of cosine and score (Reimers & Gurevych 2019, section 3: regression objective)."""
    return ((firsts_BH * seconds_BH).sum(dim=1) - score_B) ** 2


def ranking_losses(firsts_BH: Tensor, seconds_BH: Tensor, targets: Targets, temperature: float) -> Tensor:
    """Multiple negatives ranking (Henderson et al. 2017, section 4.4) in both directions, their mean (Radford et al.
    2021, section 2.3): the other pairs of the batch are the negatives, but for those with a text of this pair.
    """
    cosine_BB = firsts_BH @ seconds_BH.T / temperature
    is_twin_BB = (targets.first_B[:, None] == targets.first_B) | (targets.second_B[:, None] == targets.second_B)
    is_twin_BB = is_twin_BB & ~torch.eye(len(is_twin_BB), dtype=torch.bool, device=is_twin_BB.device)
    cosine_BB = cosine_BB.masked_fill(is_twin_BB, -torch.inf)
    place_B = torch.arange(len(cosine_BB), device=cosine_BB.device)
    there_B = functional.cross_entropy(cosine_BB, place_B, reduction="none")
    back_B = functional.cross_entropy(cosine_BB.T, place_B, reduction="none")
    return (there_B + back_B) / 2
