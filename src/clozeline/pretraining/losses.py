"""Losses, summed over a batch: the mean is taken once, over all targets of a step.

Shapes: B rows, L longest row, T targets, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozeline.language_modelling import language_model
from clozeline.language_modelling.detection import ReplacedTokenPair, detection_logits, draw
from clozeline.language_modelling.language_model import LanguageModel
from clozeline.language_modelling.objectives import DetectionBatch, TargetBatch
from clozeline.tokens.draws import Flags
from clozeline.training.state import Scored


def loss_of(model: LanguageModel, is_fixed_V: Flags, discriminator_weight: float) -> nn.Module:
    """Return a module that maps a batch to its summed loss in nats and its number of right answers (`Scored`).

    Only replaced-token detection uses `is_fixed_V` and `discriminator_weight`: see `DetectionLoss`.
    """
    if isinstance(model, ReplacedTokenPair):
        return DetectionLoss(model, is_fixed_V, discriminator_weight)
    return TargetLoss(model)


class TargetLoss(nn.Module):
    """Cross-entropy of a batch's targets, summed, in nats; for a pair that of the generator."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: TargetBatch) -> Scored:
        logits_TV = language_model.target_logits(self.model, batch)
        loss_sum = functional.cross_entropy(logits_TV, batch.labels_T, reduction="sum")
        return Scored(loss_sum, _num_right(logits_TV.detach(), batch.labels_T))


def _num_right(logits_TV: Tensor, labels_T: Tensor) -> Tensor:
    """Return the number of targets whose label has the highest logit, a scalar.

    A CPU finds the highest logit in an eighth of the time of its index. fp32 logits hardly ever tie; where 16 bits do,
    the first index wins.
    """
    if logits_TV.dtype == torch.float32:
        is_right_T = logits_TV.gather(1, labels_T[:, None])[:, 0] == logits_TV.amax(dim=1)
    else:
        is_right_T = logits_TV.argmax(dim=1) == labels_T
    return is_right_T.sum()


class DetectionLoss(nn.Module):
    """Sum of the generator's cross-entropy, a mean over targets, and the weighted one of the discriminator, a mean over
    all real tokens (Clark et al. 2020, section 2). Right answers are the generator's.

    Like any loss here, the result has to be divided by all targets of the step. The discriminator's sum is therefore
    scaled by the step's targets per real token, which every part of a batch knows.
    """

    is_fixed_V: Tensor

    def __init__(self, model: ReplacedTokenPair, is_fixed_V: Flags, discriminator_weight: float) -> None:
        """`is_fixed_V`: tokens that the generator never inserts. `discriminator_weight`: λ of the paper."""
        super().__init__()
        self.model = model
        self.register_buffer("is_fixed_V", torch.from_numpy(is_fixed_V), persistent=False)
        self._weight = discriminator_weight
        # Kept out of the compiled graph: its number of iterations depends on the number of targets.
        self._draw: Callable[[Tensor, Tensor, Tensor], Tensor] = torch.compiler.disable(draw)

    def forward(self, batch: DetectionBatch) -> Scored:
        logits_TV = language_model.target_logits(self.model, batch)
        generator_sum = functional.cross_entropy(logits_TV, batch.labels_T, reduction="sum")
        ids_BL, is_replaced_BL = batch.with_guesses(self._draw(logits_TV.detach(), batch.uniform_T, self.is_fixed_V))
        logits_BL = detection_logits(self.model, ids_BL, batch.attention_mask_BL)
        is_real_BL = batch.attention_mask_BL
        discriminator_sum = functional.binary_cross_entropy_with_logits(
            logits_BL,
            is_replaced_BL.to(logits_BL.dtype),
            weight=None if is_real_BL is None else is_real_BL.to(logits_BL.dtype),
            reduction="sum",
        )
        loss_sum = generator_sum + self._weight * batch.targets_per_token * discriminator_sum
        return Scored(loss_sum, _num_right(logits_TV.detach(), batch.labels_T))
