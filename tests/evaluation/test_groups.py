"""Claim: every token is asked once; its figures are those of a softmax, and are summed by group."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from clozeline.evaluation import groups
from clozeline.evaluation.groups import Asked, Judged
from clozeline.language.objectives import Split
from clozeline.language.shards import TokenShards
from clozeline.language.spelling import Spelling

MASK = 4
NONE = Judged(np.zeros(0), np.zeros(0, bool), np.zeros(0, bool), np.zeros(0))
SplitOf = Callable[..., Split]


@pytest.fixture
def split_of(make_tokens: Callable[..., Path]) -> SplitOf:
    """`split_of(documents, …)`: a split of documents of these tokens."""

    def split_of(*documents: list[int], max_length: int = 32) -> Split:
        arrays = [np.array(document) for document in documents]
        return Split.open(TokenShards.open(make_tokens(arrays, arrays), "validation"), max_length)

    return split_of


def everything_asked(split: Split) -> Asked:
    """Return the targets of a causal model: all tokens at once, in reading order."""
    (asked,) = groups.in_folds("clm", split, seed=1, num_folds=1, batch_tokens=10_000)
    return asked


@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_targets_come_in_the_order_of_their_labels(split: Split, objective: Any) -> None:
    for asked in groups.in_folds(objective, split, seed=1, num_folds=5, batch_tokens=256):
        assert asked.tokens.input_ids_N[asked.target_T].tolist() == asked.batch.labels_T.tolist()


@pytest.mark.parametrize("batch_tokens", [40, 500, 100_000])
def test_each_token_is_masked_alone_in_its_own_copy_of_the_row(split: Split, batch_tokens: int) -> None:
    found = []
    num_rows = 0
    for asked in groups.one_by_one(split, batch_tokens=batch_tokens):
        documents, positions = (it[asked.target_T] for it in (asked.tokens.document_N, asked.tokens.position_N))
        found += zip(documents.tolist(), positions.tolist(), strict=True)
        num_rows += asked.num_rows
        assert ((asked.batch.input_ids_BL == MASK).sum(dim=1) == 1).all()
        assert asked.batch.labels_T.tolist() == asked.tokens.input_ids_N[asked.target_T].tolist()
        assert asked.batch.input_ids_BL.numel() <= max(batch_tokens, 32)
    sizes = np.diff(split.shards.offsets.astype(np.int64)).tolist()
    assert sorted(found) == [(document, place) for document, size in enumerate(sizes) for place in range(size)]
    assert num_rows == groups.num_copies(split) == split.shards.num_tokens


def test_targets_are_grouped_by_their_document(split_of: SplitOf) -> None:
    asked = everything_asked(split_of([5, 6], [7, 8, 9], [5, 6, 7, 8]))
    assert groups.by_document(3).groups(asked, NONE).tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert groups.by_document(2).groups(asked, NONE).tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0]


def test_bins_of_confidence_are_of_equal_width(split: Split) -> None:
    bins = {0.001: 0, 1 / 15: 0, 0.07: 1, 0.5: 7, 0.94: 14, 1.0: 14}
    judged = SimpleNamespace(confidence_T=np.array([*bins]))
    found: Any = groups.by_confidence().groups(everything_asked(split), judged)  # type: ignore[arg-type]
    assert found.tolist() == [*bins.values()]


def test_bins_of_frequency_are_decades_of_the_training_text(split_of: SplitOf) -> None:
    split = split_of([5, 6, 7, 8, 9])
    counts_V = np.zeros(64, dtype=np.int64)
    counts_V[[6, 7, 8, 9]] = 1, 9, 10, 2345
    grouping = groups.by_frequency(counts_V, split)
    found = grouping.groups(everything_asked(split), NONE)
    assert [grouping.named[group][0] for group in found] == ["0", "1-9", "1-9", "10-99", "1000-9999"]
    assert [num_kinds for _, num_kinds in grouping.named] == [55, 2, 1, 0, 1]  # of 59 ordinary tokens


def test_places_are_positions_in_the_row_up_to_its_end(split_of: SplitOf) -> None:
    grouping = groups.by_place(42)
    found = grouping.groups(everything_asked(split_of(list(range(5, 45)), max_length=42)), NONE)
    assert found.tolist() == [place // 3 for place in range(40)]
    assert [grouping.named[group] for group in (0, 13)] == [(1, 3), (40, 40)]
    assert grouping.num_groups == 14


def test_single_token_words_first_pieces_and_continuations_are_separate_groups(split_of: SplitOf) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##believ", "##able", "list"]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    model = {"type": "WordPiece", "continuing_subword_prefix": "##", "vocab": vocabulary}
    spelling = Spelling.of(json.dumps({"model": model, "added_tokens": [], "pre_tokenizer": None}))
    asked = everything_asked(split_of([8, 5, 6, 7, 8], [5, 8, 5, 7, 8, 5]))
    assert groups.by_word_class(spelling).groups(asked, NONE).tolist() == [0, 1, 2, 2, 0, 0, 0, 1, 2, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probabilities_equal_a_softmax_over_each_row_of_logits(dtype: torch.dtype) -> None:
    """Half-precision logits are judged in single precision."""
    torch.manual_seed(0)
    logits_TV, labels_T = (torch.randn(150, 40) * 2).to(dtype), torch.randint(40, (150,))
    judged, logits_TV = groups.judge(logits_TV, labels_T), logits_TV.float()
    best_T5 = logits_TV.topk(5, dim=1).indices
    assert judged.loss_nats_T == pytest.approx(functional.cross_entropy(logits_TV, labels_T, reduction="none").numpy())
    assert judged.confidence_T == pytest.approx(logits_TV.softmax(dim=1).amax(dim=1).numpy())
    if dtype == torch.float32:  # of rounded logits, some are equal
        assert (judged.is_top1_T == (best_T5[:, 0] == labels_T).numpy()).all()
        assert (judged.is_top5_T == (best_T5 == labels_T[:, None]).any(dim=1).numpy()).all()
        assert 0 < judged.is_top5_T.sum() < 150


def test_equal_logits_for_all_tokens_count_as_no_hit() -> None:
    judged = groups.judge(torch.zeros(3, 40), torch.tensor([0, 7, 39]))
    assert not judged.is_top1_T.any()
    assert not judged.is_top5_T.any()


def test_sums_are_kept_separately_for_each_group() -> None:
    is_top1_T, is_top5_T = np.array([True, False, True]), np.array([True, True, True])
    judged = Judged(np.array([1.0, 2.0, 4.0]), is_top1_T, is_top5_T, np.array([0.5, 0.25, 0.125]))
    sums = groups.Sums.zero(3)
    sums.add(np.array([2, 0, 2]), judged)
    sums.add(np.array([2, 0, 1]), judged)
    assert sums.num_targets_G.tolist() == [2, 1, 3]
    assert sums.loss_nats_G.tolist() == [4.0, 4.0, 6.0]
    assert sums.num_top1_G.tolist() == [0, 1, 3]
    assert sums.num_top5_G.tolist() == [2, 1, 3]
    assert sums.confidence_G.tolist() == [0.5, 0.125, 1.125]
    assert sums.num_targets == 6
