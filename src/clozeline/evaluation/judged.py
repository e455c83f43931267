"""Quality of each prediction, and sums of it over groups of targets.

Sums are float64: a million float32 addends would lose the last digits, and with them repeatability.

Shapes: T targets of a batch, V vocabulary, G groups.
"""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozeline.processes.group import Group
from clozeline.tokens.masking import Ids

_TOP = 5
_TARGETS_AT_A_TIME = 64
"""Rows of logits that stay in the processor's cache between operations."""


@dataclass(frozen=True)
class Judged:
    """Quality of the model's predictions for the targets of a batch."""

    loss_nats_T: NDArray[np.float64]
    is_top1_T: NDArray[np.bool_]
    is_top5_T: NDArray[np.bool_]
    confidence_T: NDArray[np.float64]
    """Probability of the likeliest token, right or wrong."""


@torch.inference_mode()
def judge(logits_TV: Tensor, labels_T: Tensor) -> Judged:
    """Judge the logits of each target. Ties count against the model, so constant logits give no hits."""
    columns = [
        torch.stack(_columns(some_TV, some_T))
        for some_TV, some_T in zip(logits_TV.split(_TARGETS_AT_A_TIME), labels_T.split(_TARGETS_AT_A_TIME), strict=True)
    ]
    loss_T, rank_T, confidence_T = torch.cat(columns, dim=1).cpu().numpy()
    return Judged(loss_T, rank_T < 1, rank_T < _TOP, confidence_T)


def _columns(logits_TV: Tensor, labels_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, rank from 0, and confidence of each target, as float64."""
    log_probability_TV = logits_TV.float().log_softmax(dim=1)
    of_label_T1 = log_probability_TV.gather(1, labels_T[:, None])
    rank_T = (log_probability_TV >= of_label_T1).count_nonzero(dim=1) - 1
    confidence_T = log_probability_TV.amax(dim=1).double().exp()
    return -of_label_T1[:, 0].double(), rank_T.double(), confidence_T


@dataclass(frozen=True)
class Sums:
    """Sums of `Judged` over groups of targets."""

    num_targets_G: Ids
    loss_nats_G: NDArray[np.float64]
    num_top1_G: Ids
    num_top5_G: Ids
    confidence_G: NDArray[np.float64]

    @classmethod
    def zero(cls, num_groups: int) -> Self:
        counts, sums = np.zeros(num_groups, dtype=np.int64), np.zeros(num_groups)
        return cls(counts, sums, counts.copy(), counts.copy(), sums.copy())

    def add(self, group_T: Ids, judged: Judged) -> None:
        """Add each target's answer to its group, in place."""
        values = (None, judged.loss_nats_T, judged.is_top1_T, judged.is_top5_T, judged.confidence_T)
        for field, values_T in zip(fields(self), values, strict=True):
            sums_G: NDArray[np.float64] = getattr(self, field.name)
            sums_G += np.bincount(group_T, values_T, minlength=len(sums_G)).astype(sums_G.dtype)

    def over(self, group: Group) -> Self:
        """Return the sums over the targets of all processes, added in the order of their ranks."""
        parts = group.of_each(self)
        return type(self)(*(sum(getattr(part, field.name) for part in parts) for field in fields(self)))

    @property
    def num_targets(self) -> int:
        return int(self.num_targets_G.sum())
