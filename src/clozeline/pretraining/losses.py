"""Losses of language modelling, summed over a batch, and their mean on a fixed sample of the validation split.

The mean is taken once, over all targets of a step. The sample serves validation during training.

Shapes: B rows, L longest row, T targets, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from clozeline.language import detection, draws, models, objectives, order, shards
from clozeline.language.models import LanguageModel
from clozeline.system.errors import DataError
from clozeline.training import curves, micro_batches, state

# Tokens of the validation split in each validation pass: enough for a trend. Stage `evaluate` measures all of it.
VALIDATION_TOKENS = 20_000
# One token in seven is a target, whatever the mask rate in training: close to the 15 % of Devlin et al. 2018.
_NUM_FOLDS = 7


def loss_of(model: LanguageModel, is_fixed_V: draws.Flags, discriminator_weight: float) -> nn.Module:
    """Return a module that maps a batch to its summed loss in nats and its number of right answers (`Scored`).

    Only replaced-token detection uses `is_fixed_V` and `discriminator_weight`: see `DetectionLoss`.
    """
    if isinstance(model, detection.ReplacedTokenPair):
        return DetectionLoss(model, is_fixed_V, discriminator_weight)
    return TargetLoss(model)


class TargetLoss(nn.Module):
    """Cross-entropy of a batch's targets, summed, in nats; for a pair that of the generator."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: objectives.TargetBatch) -> state.Scored:
        logits_TV = models.target_logits(self.model, batch)
        loss_sum = functional.cross_entropy(logits_TV, batch.labels_T, reduction="sum")
        return state.Scored(loss_sum, _num_right(logits_TV.detach(), batch.labels_T))


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

    def __init__(self, model: detection.ReplacedTokenPair, is_fixed_V: draws.Flags, weight: float) -> None:
        """`is_fixed_V`: tokens that the generator never inserts. `weight`: λ of the paper."""
        super().__init__()
        self.model = model
        self.register_buffer("is_fixed_V", torch.from_numpy(is_fixed_V), persistent=False)
        self._weight = weight
        # Kept out of the compiled graph: its number of iterations depends on the number of targets.
        self._draw: Callable[[Tensor, Tensor, Tensor], Tensor] = torch.compiler.disable(detection.draw)

    def forward(self, batch: objectives.DetectionBatch) -> state.Scored:
        logits_TV = models.target_logits(self.model, batch)
        generator_sum = functional.cross_entropy(logits_TV, batch.labels_T, reduction="sum")
        ids_BL, is_replaced_BL = batch.with_guesses(self._draw(logits_TV.detach(), batch.uniform_T, self.is_fixed_V))
        logits_BL = detection.detection_logits(self.model, ids_BL, batch.attention_mask_BL)
        is_real_BL = batch.attention_mask_BL
        discriminator_sum = functional.binary_cross_entropy_with_logits(
            logits_BL,
            is_replaced_BL.to(logits_BL.dtype),
            weight=None if is_real_BL is None else is_real_BL.to(logits_BL.dtype),
            reduction="sum",
        )
        loss_sum = generator_sum + self._weight * batch.targets_per_token * discriminator_sum
        return state.Scored(loss_sum, _num_right(logits_TV.detach(), batch.labels_T))


@dataclass(frozen=True)
class Judge:
    """Evaluates every model on the same targets in the same rows."""

    loss: nn.Module  # maps a batch to its summed loss and its number of right answers
    objective: objectives.Objective
    split: objectives.Split
    seed: int
    max_tokens: int
    batch_tokens: int
    hardware: micro_batches.Hardware[Any]

    @torch.no_grad()
    def measure(self) -> curves.Quality:
        loss_sum, num_right, num_targets = 0.0, 0, 0
        for batch in self._batches:
            for part in self.hardware.micro_batches.parts(batch):
                with self.hardware.precision.autocast():
                    scored = self.loss(part)
                loss_sum += scored.loss_sum.item()
                num_right += scored.num_right.item()
            num_targets += len(batch.labels_T)
        return curves.Quality(loss_sum / num_targets, num_right / num_targets)

    @cached_property
    def _batches(self) -> list[objectives.TargetBatch]:
        chosen_R = self._rows()
        plan = order.sorted_plan(self.split.rows.length_R[chosen_R], self.batch_tokens)
        tokens = [self.split.read(chosen_R[plan.rows_of(index)]) for index in range(plan.num_batches)]
        for fold in range(_NUM_FOLDS):  # the first fold with a target: few tokens may leave a fold empty
            asked = [self.objective.evaluation_batch(self.split, part, self.seed, fold, _NUM_FOLDS) for part in tokens]
            num_targets = sum(len(batch.labels_T) for batch in asked)
            if num_targets:
                num_tokens = sum(int(part.length_B.sum()) for part in tokens)
                return [batch.as_part_of(num_targets, num_tokens) for batch in asked]
        raise DataError(
            f"the validation split has no target: its {self.split.shards.num_tokens} tokens are all special or unknown",
            do="make the validation split larger, or set `validation.every_steps` to null",
        )

    def _rows(self) -> NDArray[np.int64]:
        """Return rows spread evenly over the split, of `max_tokens` in all."""
        num_rows = len(self.split.rows)
        tokens = self.split.shards.num_tokens + shards.NUM_BOUNDARY_TOKENS * num_rows
        wanted = max(min(num_rows * self.max_tokens // tokens, num_rows), 1)
        return np.linspace(0, num_rows - 1, wanted).astype(np.int64)
