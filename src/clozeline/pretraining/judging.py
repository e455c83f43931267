"""Loss and accuracy on a fixed sample of the validation split, for validation during training."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from clozeline.errors import DataError
from clozeline.language_modelling.batches import Split
from clozeline.language_modelling.objectives import Objective, TargetBatch
from clozeline.tokens.order import sorted_plan
from clozeline.tokens.rows import NUM_BOUNDARY_TOKENS
from clozeline.training.curves import Quality
from clozeline.training.hardware import Hardware

VALIDATION_TOKENS = 20_000
"""Tokens of the validation split in each validation pass: enough for a trend. Stage `evaluate` measures all of it."""
_NUM_FOLDS = 7
"""One token in seven is a target, whatever the mask rate in training: close to the 15 % of Devlin et al. 2018."""


@dataclass(frozen=True)
class Judge:
    """Evaluates every model on the same targets in the same rows."""

    loss: nn.Module
    """Maps a batch to its summed loss and its number of right answers."""
    objective: Objective
    split: Split
    seed: int
    max_tokens: int
    batch_tokens: int
    hardware: Hardware[Any]

    @torch.no_grad()
    def measure(self) -> Quality:
        loss_sum, num_right, num_targets = 0.0, 0, 0
        for batch in self._batches:
            for part in self.hardware.micro_batches.parts(batch):
                with self.hardware.precision.autocast():
                    scored = self.loss(part)
                loss_sum += scored.loss_sum.item()
                num_right += scored.num_right.item()
            num_targets += len(batch.labels_T)
        return Quality(loss_sum / num_targets, num_right / num_targets)

    @cached_property
    def _batches(self) -> list[TargetBatch]:
        chosen_R = self._rows()
        plan = sorted_plan(self.split.rows.length_R[chosen_R], self.batch_tokens)
        tokens = [self.split.read(chosen_R[plan.rows_of(index)]) for index in range(plan.num_batches)]
        for fold in range(_NUM_FOLDS):  # the first fold with a target: few tokens may leave a fold empty
            asked = [self.objective.judging(self.split, part, self.seed, fold, _NUM_FOLDS) for part in tokens]
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
        tokens = self.split.shards.num_tokens + NUM_BOUNDARY_TOKENS * num_rows
        wanted = max(min(num_rows * self.max_tokens // tokens, num_rows), 1)
        return np.linspace(0, num_rows - 1, wanted).astype(np.int64)
