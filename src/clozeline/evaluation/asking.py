"""Evaluation batches: every token of a split is a target exactly once, masked by folds or one at a time.

Shapes: R rows of a split, sorted by length; C copies of rows; N content tokens of a batch, T targets among them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clozeline.encoder.families import LanguageHead
from clozeline.language_modelling.batches import Split
from clozeline.language_modelling.objectives import OBJECTIVES, TargetBatch, hidden_batch, in_fold
from clozeline.processes.group import ALONE, Group
from clozeline.tokens.masking import Ids, Masked
from clozeline.tokens.order import sorted_plan
from clozeline.tokens.rows import NUM_BOUNDARY_TOKENS, RowTokens

NUM_FOLDS = 7
"""Passes over the text; each token is a target in one of them."""
BATCH_TOKENS = 8192


@dataclass(frozen=True)
class Asked:
    """A batch, and which of its tokens are the targets."""

    batch: TargetBatch
    tokens: RowTokens
    target_T: Ids
    """Indices into `tokens`, in the order of the batch's targets."""

    @property
    def num_rows(self) -> int:
        return len(self.tokens.length_B)


def num_passes(head: LanguageHead, num_folds: int) -> int:
    """Return the number of passes. A causal model never sees its targets, so one pass covers all tokens."""
    return 1 if head == "clm" else num_folds


def in_folds(
    head: LanguageHead, split: Split, *, seed: int, num_folds: int, batch_tokens: int, group: Group = ALONE
) -> Iterator[Asked]:
    """Yield every batch of this process for each fold. The identity of a token decides its fold; pass k hides fold k
    alone.
    """
    folds = num_passes(head, num_folds)
    plan = sorted_plan(split.rows.length_R, batch_tokens)
    for index in filter(group.has, range(plan.num_batches)):
        tokens = split.read(plan.rows_of(index))
        for fold in range(folds):
            batch = OBJECTIVES[head].judging(split, tokens, seed, fold, folds)
            yield Asked(batch, tokens, np.flatnonzero(in_fold(split, tokens, seed, fold, folds)))


def one_by_one(split: Split, *, batch_tokens: int, group: Group = ALONE) -> Iterator[Asked]:
    """Yield this process's batches with one copy of a row for each of its tokens; the copy hides only that token. The
    method is that of Salazar et al. 2020, section 2.

    Rows are ordered by length, so that the copies in a batch need almost no padding.
    """
    order_R = np.argsort(split.rows.length_R, kind="stable")
    length_R = split.rows.length_R[order_R]
    end_R = np.cumsum(length_R)
    start, num_copies, number = 0, int(end_R[-1]) if len(end_R) else 0, 0
    while start < num_copies:
        first = int(np.searchsorted(end_R, start, side="right"))
        most = max(batch_tokens // int(length_R[first] + NUM_BOUNDARY_TOKENS), 1)
        copy_C = np.arange(start, min(start + most, num_copies))
        row_C = np.searchsorted(end_R, copy_C, side="right")
        fits_C = np.arange(1, len(copy_C) + 1) * (length_R[row_C] + NUM_BOUNDARY_TOKENS) <= batch_tokens
        num_fitting = max(int(fits_C.sum()), 1)
        copy_C, row_C = copy_C[:num_fitting], row_C[:num_fitting]
        place_C = copy_C - (end_R - length_R)[row_C]
        if group.has(number):
            yield _each_alone(split, split.read(order_R[row_C]), place_C)
        start, number = start + num_fitting, number + 1


def num_copies(split: Split) -> int:
    """Return the total number of rows that `one_by_one` yields."""
    return int(split.rows.length_R.sum())


def _each_alone(split: Split, tokens: RowTokens, place_C: Ids) -> Asked:
    is_target_N = tokens.place_N == place_C[tokens.row_N]
    is_target_N &= ~split.vocabulary.is_special_V[tokens.input_ids_N]
    shown_N = np.where(is_target_N, split.vocabulary.mask_id, tokens.input_ids_N)
    batch = hidden_batch(split, tokens, Masked(shown_N, is_target_N))
    return Asked(batch, tokens, np.flatnonzero(is_target_N))
