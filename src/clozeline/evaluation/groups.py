"""Evaluation over a whole split: batches in which every token is a target once, and losses summed by groups of targets.

Tokens are masked by folds or one at a time. Groups are formed by document, confidence, frequency, position, and piece
kind (whole word, first piece, continuation). Sums are float64: a million float32 addends would lose the last digits,
and with them repeatability. The sums by group become CSV tables for the plots of dvc.yaml and for reports, with the
number of targets in every row.

Shapes: R rows of a split, sorted by length; C copies of rows; N content tokens of a batch, T targets among them; V
vocabulary, G groups.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozeline.encoder.families.layout import LanguageHead
from clozeline.language import draws, masking, objectives, order, shards
from clozeline.language.spelling import Spelling
from clozeline.records.evaluation import CalibrationRow, FrequencyRow, PlaceRow, WordClassRow
from clozeline.system.files import write_records
from clozeline.system.group import ALONE, Group

_TOP = 5
# Rows of logits that stay in the processor's cache between operations.
_TARGETS_AT_A_TIME = 64
# Passes over the text; each token is a target in one of them.
NUM_FOLDS = 7
BATCH_TOKENS = 8192
# As in Guo et al. 2017, section 5.
NUM_CONFIDENCE_BINS = 15
_MOST_PLACE_BINS = 16
WORD_CLASSES = ("whole word", "first piece", "continuation")


@dataclass(frozen=True)
class Judged:
    """Quality of the model's predictions for the targets of a batch."""

    loss_nats_T: NDArray[np.float64]
    is_top1_T: NDArray[np.bool_]
    is_top5_T: NDArray[np.bool_]
    confidence_T: NDArray[np.float64]  # probability of the likeliest token, right or wrong


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

    num_targets_G: draws.Ids
    loss_nats_G: NDArray[np.float64]
    num_top1_G: draws.Ids
    num_top5_G: draws.Ids
    confidence_G: NDArray[np.float64]

    @classmethod
    def zero(cls, num_groups: int) -> Self:
        counts, sums = np.zeros(num_groups, dtype=np.int64), np.zeros(num_groups)
        return cls(counts, sums, counts.copy(), counts.copy(), sums.copy())

    def add(self, group_T: draws.Ids, judged: Judged) -> None:
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


@dataclass(frozen=True)
class Asked:
    """A batch, and which of its tokens are the targets."""

    batch: objectives.TargetBatch
    tokens: shards.RowTokens
    target_T: draws.Ids  # indices into `tokens`, in the order of the batch's targets

    @property
    def num_rows(self) -> int:
        return len(self.tokens.length_B)


def num_passes(head: LanguageHead, num_folds: int) -> int:
    """Return the number of passes. A causal model never sees its targets, so one pass covers all tokens."""
    return 1 if head == "clm" else num_folds


def in_folds(
    head: LanguageHead, split: objectives.Split, *, seed: int, num_folds: int, batch_tokens: int, group: Group = ALONE
) -> Iterator[Asked]:
    """Yield every batch of this process for each fold. The identity of a token decides its fold; pass k hides fold k
    alone.
    """
    folds = num_passes(head, num_folds)
    plan = order.sorted_plan(split.rows.length_R, batch_tokens)
    for index in filter(group.has, range(plan.num_batches)):
        tokens = split.read(plan.rows_of(index))
        for fold in range(folds):
            batch = objectives.OBJECTIVES[head].evaluation_batch(split, tokens, seed, fold, folds)
            yield Asked(batch, tokens, np.flatnonzero(objectives.in_fold(split, tokens, seed, fold, folds)))


def one_by_one(split: objectives.Split, *, batch_tokens: int, group: Group = ALONE) -> Iterator[Asked]:
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
        most = max(batch_tokens // int(length_R[first] + shards.NUM_BOUNDARY_TOKENS), 1)
        copy_C = np.arange(start, min(start + most, num_copies))
        row_C = np.searchsorted(end_R, copy_C, side="right")
        fits_C = np.arange(1, len(copy_C) + 1) * (length_R[row_C] + shards.NUM_BOUNDARY_TOKENS) <= batch_tokens
        num_fitting = max(int(fits_C.sum()), 1)
        copy_C, row_C = copy_C[:num_fitting], row_C[:num_fitting]
        place_C = copy_C - (end_R - length_R)[row_C]
        if group.has(number):
            yield _each_alone(split, split.read(order_R[row_C]), place_C)
        start, number = start + num_fitting, number + 1


def num_copies(split: objectives.Split) -> int:
    """Return the total number of rows that `one_by_one` yields."""
    return int(split.rows.length_R.sum())


def _each_alone(split: objectives.Split, tokens: shards.RowTokens, place_C: draws.Ids) -> Asked:
    is_target_N = tokens.place_N == place_C[tokens.row_N]
    is_target_N &= ~split.vocabulary.is_special_V[tokens.input_ids_N]
    shown_N = np.where(is_target_N, split.vocabulary.mask_id, tokens.input_ids_N)
    batch = objectives.hidden_batch(split, tokens, masking.Masked(shown_N, is_target_N))
    return Asked(batch, tokens, np.flatnonzero(is_target_N))


@dataclass(frozen=True)
class Grouping:
    """Assigns each target of a batch to a group."""

    num_groups: int
    groups: Callable[[Asked, Judged], draws.Ids]  # function that returns the group of each target, `group_T`
    named: Sequence[tuple[Any, ...]] = ()  # what each group is, as the first columns of its row in a table


def by_document(num_groups: int) -> Grouping:
    """Group by document: document i of a split is in group i modulo `num_groups`."""
    return Grouping(num_groups, lambda asked, judged: asked.tokens.document_N[asked.target_T] % num_groups)


def by_confidence() -> Grouping:
    """Group by confidence, in bins of equal width: group i is (i / 15, (i + 1) / 15]."""

    def groups(asked: Asked, judged: Judged) -> draws.Ids:
        bin_T = np.ceil(judged.confidence_T * NUM_CONFIDENCE_BINS).astype(np.int64) - 1
        return np.clip(bin_T, 0, NUM_CONFIDENCE_BINS - 1)

    return Grouping(NUM_CONFIDENCE_BINS, groups)


def by_frequency(counts_V: draws.Ids, split: objectives.Split) -> Grouping:
    """Group by the token's count in the training text: never, 1-9 times, 10-99 times, …; named with the number of
    ordinary tokens of the vocabulary in each group.
    """
    decades = [10**power for power in range(len(str(int(counts_V.max()))))]
    names = ["0", *(f"{first}-{first * 10 - 1}" for first in decades)]
    group_V = np.searchsorted(decades, counts_V, side="right")
    num_kinds_G = np.bincount(group_V[split.vocabulary.ordinary_ids], minlength=len(names))
    named = list(zip(names, num_kinds_G.tolist(), strict=True))
    return Grouping(len(names), lambda asked, judged: group_V[asked.tokens.input_ids_N[asked.target_T]], named)


def by_place(max_length: int) -> Grouping:
    """Group by position in the row, counted from 1 after [CLS]: in a causal model, the length of the context.

    Groups are named by their first and last position.
    """
    capacity = max_length - shards.NUM_BOUNDARY_TOKENS
    width = -(-capacity // _MOST_PLACE_BINS)
    named = [(first, min(first + width - 1, capacity)) for first in range(1, capacity + 1, width)]
    return Grouping(len(named), lambda asked, judged: asked.tokens.place_N[asked.target_T] // width, named)


def by_word_class(spelling: Spelling) -> Grouping:
    """Group by piece kind: a whole word, the first piece of a longer word, or a later piece. All targets are in the
    first group if the tokenizer does not mark word starts.
    """

    def groups(asked: Asked, judged: Judged) -> draws.Ids:
        tokens = asked.tokens
        follows_N = draws.follows(tokens.row_N, tokens.position_N)
        continues_N = spelling.continues_word(tokens.input_ids_N, follows_N)
        is_continued_N = np.append(continues_N[1:], False)
        class_N = np.where(continues_N, 2, np.where(is_continued_N, 1, 0))
        return class_N[asked.target_T]

    names = WORD_CLASSES if spelling.marks_words else ("not marked by the tokenizer",) * len(WORD_CLASSES)
    return Grouping(len(names), groups, [(name,) for name in names])


def write_calibration(path: Path, sums: Sums) -> None:
    rows = (
        CalibrationRow(
            confidence_above=group / NUM_CONFIDENCE_BINS,
            confidence_to=(group + 1) / NUM_CONFIDENCE_BINS,
            targets=count,
            mean_confidence=float(sums.confidence_G[group] / count),
            accuracy=top1,
        )
        for group, count, _, top1, _ in _figures(sums)
    )
    write_records(path, CalibrationRow, rows)


def write_figures(path: Path, kind: type[FrequencyRow | PlaceRow | WordClassRow], sums: Sums, groups: Grouping) -> None:
    """Write a row for each group that has targets: what it is, and its figures."""
    write_records(path, kind, (kind(*groups.named[group], *figures) for group, *figures in _figures(sums)))


def _figures(sums: Sums) -> Iterator[tuple[int, int, float, float, float]]:
    """Yield each group that has targets: its number, number of targets, nats per target, top-1 and top-5."""
    for group in np.flatnonzero(sums.num_targets_G).tolist():
        count = int(sums.num_targets_G[group])
        loss_nats, top1, top5 = (
            float(sums_G[group]) / count for sums_G in (sums.loss_nats_G, sums.num_top1_G, sums.num_top5_G)
        )
        yield group, count, loss_nats, top1, top5
