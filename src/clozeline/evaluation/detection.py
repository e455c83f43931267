"""Figures of replaced-token detection over a whole split (Clark et al. 2020).

Tokens are assigned to folds as for the generator's own figures. Pass k replaces fold k by the generator's guesses, and
every real token, including the two that frame a row, is judged in every pass. The sums are counts, so the figures do
not depend on how rows were batched, and memory does not grow with the split.

Shapes: B rows, L longest row, N real tokens, S bins of scores.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozeline.evaluation.asking import Asked
from clozeline.language_modelling import language_model
from clozeline.language_modelling.detection import ReplacedTokenPair, detection_logits, draw
from clozeline.language_modelling.objectives import DetectionBatch
from clozeline.processes.group import ALONE, Group
from clozeline.tokens.masking import Vocabulary

Counts = NDArray[np.int64]
_NUM_BINS = 2**16
"""Even, so that no bin holds scores from both sides of 0."""
_MOST = 16.0
"""Logits further from 0 fall into the outermost bin."""


@dataclass(frozen=True)
class DetectionFigures:
    """Figures of one discriminator against one generator; "positive" is a replaced token."""

    accuracy: float
    majority_accuracy: float
    """Accuracy of calling every token original."""
    auc: float | None
    """Probability that a replaced token scores higher than an original one (ties: 1/2); None if a kind is missing."""
    precision: float
    recall: float
    f1: float
    tokens: int
    """Number of judgements: each token counts once in every pass."""


@torch.inference_mode()
def measure(
    model: ReplacedTokenPair,
    questions: Iterable[Asked],
    vocabulary: Vocabulary,
    advance: Callable[[int], None],
    group: Group = ALONE,
) -> DetectionFigures:
    """Judge `model` on every token of `questions`, in all their passes; call `advance` with the row count of each
    batch.

    Each process of `group` has other questions, and gets the figures of all of them.
    """
    is_special_V = torch.from_numpy(vocabulary.is_special_V).to(group.device)
    counts_2S = np.zeros((2, _NUM_BINS), dtype=np.int64)
    for asked in questions:
        assert isinstance(asked.batch, DetectionBatch)
        counts_2S += _counts(model, asked.batch.to(group.device), is_special_V)
        advance(asked.num_rows)
    return figures_of(np.stack(group.of_each(counts_2S)).sum(axis=0))


def _counts(model: ReplacedTokenPair, batch: DetectionBatch, is_special_V: Tensor) -> Counts:
    """Return the number of original and of replaced tokens with a score in each bin."""
    guess_T = draw(language_model.target_logits(model, batch), batch.uniform_T, is_special_V)
    ids_BL, is_replaced_BL = batch.with_guesses(guess_T)
    mask_BL = batch.attention_mask_BL
    is_real_BL = torch.ones_like(ids_BL, dtype=torch.bool) if mask_BL is None else mask_BL.bool()
    score_N = detection_logits(model, ids_BL, mask_BL)[is_real_BL].double()
    bin_N = ((score_N + _MOST) * (_NUM_BINS / (2 * _MOST))).floor().long().clamp(0, _NUM_BINS - 1)
    key_N = is_replaced_BL[is_real_BL].long() * _NUM_BINS + bin_N
    return torch.bincount(key_N, minlength=2 * _NUM_BINS).view(2, _NUM_BINS).cpu().numpy()


def figures_of(counts_2S: Counts) -> DetectionFigures:
    """Return the figures of a histogram of scores.

    `counts_2S` holds the original and the replaced tokens in an even number of bins, ascending and centred on 0.
    """
    half = counts_2S.shape[1] // 2
    (right_originals, false_alarms), (missed, found) = (
        (int(counts_S[:half].sum()), int(counts_S[half:].sum())) for counts_S in counts_2S
    )
    originals, replaced = right_originals + false_alarms, missed + found
    original_S, replaced_S = counts_2S.astype(np.float64)
    below_S = np.cumsum(original_S) - original_S / 2
    pairs = originals * replaced
    return DetectionFigures(
        accuracy=(right_originals + found) / (originals + replaced),
        majority_accuracy=originals / (originals + replaced),
        auc=float((replaced_S * below_S).sum() / pairs) if pairs else None,
        precision=found / max(found + false_alarms, 1),
        recall=found / max(replaced, 1),
        f1=2 * found / max(2 * found + false_alarms + missed, 1),
        tokens=originals + replaced,
    )
