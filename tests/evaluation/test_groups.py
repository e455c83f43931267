import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from clozeline.evaluation.groups import (
    Asked,
    Judged,
    Sums,
    by_confidence,
    by_document,
    by_frequency,
    by_place,
    by_word_class,
    in_folds,
    judge,
    num_copies,
    one_by_one,
)
from clozeline.language.objectives import Split
from clozeline.language.shards import TokenShards
from clozeline.language.spelling import Spelling

MASK = 4


def identities(asked: Asked) -> list[tuple[int, int]]:
    """Return (document, position) of each target."""
    documents, positions = asked.tokens.document_N[asked.target_T], asked.tokens.position_N[asked.target_T]
    return list(zip(documents.tolist(), positions.tolist(), strict=True))


def every_token(split: Split) -> list[tuple[int, int]]:
    sizes = np.diff(split.shards.offsets.astype(np.int64)).tolist()
    return [(document, position) for document, size in enumerate(sizes) for position in range(size)]


@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_targets_come_in_the_order_of_their_labels(split: Split, objective: str) -> None:
    for asked in in_folds(objective, split, seed=1, num_folds=5, batch_tokens=256):
        assert asked.tokens.input_ids_N[asked.target_T].tolist() == asked.batch.labels_T.tolist()


@pytest.mark.parametrize("batch_tokens", [40, 500, 100_000])
def test_each_token_is_masked_alone_in_its_own_copy_of_the_row(split: Split, batch_tokens: int) -> None:
    asked_all = list(one_by_one(split, batch_tokens=batch_tokens))
    assert sorted(identity for asked in asked_all for identity in identities(asked)) == every_token(split)
    assert sum(asked.num_rows for asked in asked_all) == num_copies(split) == split.shards.num_tokens
    for asked in asked_all:
        hidden_BL = asked.batch.input_ids_BL == MASK
        assert (hidden_BL.sum(dim=1) == 1).all()
        assert asked.batch.labels_T.tolist() == asked.tokens.input_ids_N[asked.target_T].tolist()
        assert asked.batch.input_ids_BL.numel() <= max(batch_tokens, 32)


TokensMaker = Callable[..., Path]
NONE = Judged(np.zeros(0), np.zeros(0, bool), np.zeros(0, bool), np.zeros(0))


def everything_asked(split: Split) -> Asked:
    """Return the targets of a causal model: all tokens at once, in reading order."""
    (asked,) = in_folds("clm", split, seed=1, num_folds=1, batch_tokens=10_000)
    return asked


def split_of(make_tokens: TokensMaker, *documents: list[int], max_length: int = 32) -> Split:
    arrays = [np.array(document) for document in documents]
    return Split.open(TokenShards.open(make_tokens(arrays, arrays), "validation"), max_length)


def test_targets_are_grouped_by_their_document(make_tokens: TokensMaker) -> None:
    asked = everything_asked(split_of(make_tokens, [5, 6], [7, 8, 9], [5, 6, 7, 8]))
    assert by_document(3).groups(asked, NONE).tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert by_document(2).groups(asked, NONE).tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(("confidence", "group"), [(0.001, 0), (1 / 15, 0), (0.07, 1), (0.5, 7), (0.94, 14), (1.0, 14)])
def test_bins_of_confidence_are_of_equal_width(split: Split, confidence: float, group: int) -> None:
    judged = Judged(np.zeros(1), np.zeros(1, bool), np.zeros(1, bool), np.array([confidence]))
    assert by_confidence().groups(everything_asked(split), judged).tolist() == [group]


def test_bins_of_frequency_are_decades_of_the_training_text(make_tokens: TokensMaker) -> None:
    split = split_of(make_tokens, [5, 6, 7, 8, 9])
    counts_V = np.zeros(64, dtype=np.int64)
    counts_V[[6, 7, 8, 9]] = 1, 9, 10, 2345
    grouping = by_frequency(counts_V, split)
    groups = grouping.groups(everything_asked(split), NONE)
    assert [grouping.named[group][0] for group in groups] == ["0", "1-9", "1-9", "10-99", "1000-9999"]
    assert [num_kinds for _, num_kinds in grouping.named] == [55, 2, 1, 0, 1]  # of 59 ordinary tokens


def test_places_are_positions_in_the_row_up_to_its_end(make_tokens: TokensMaker) -> None:
    split = split_of(make_tokens, list(range(5, 45)), max_length=42)
    grouping = by_place(42)
    groups = grouping.groups(everything_asked(split), NONE).tolist()
    assert groups == [place // 3 for place in range(40)]
    assert [grouping.named[group] for group in (0, 13)] == [(1, 3), (40, 40)]
    assert grouping.num_groups == 14


def test_single_token_words_first_pieces_and_continuations_are_separate_groups(make_tokens: TokensMaker) -> None:
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "un": 5, "##believ": 6, "##able": 7}
    vocabulary["list"] = 8
    model = {"type": "WordPiece", "continuing_subword_prefix": "##", "vocab": vocabulary}
    spelling = Spelling.of(json.dumps({"model": model, "added_tokens": [], "pre_tokenizer": None}))
    asked = everything_asked(split_of(make_tokens, [8, 5, 6, 7, 8], [5, 8, 5, 7, 8, 5]))
    assert by_word_class(spelling).groups(asked, NONE).tolist() == [0, 1, 2, 2, 0, 0, 0, 1, 2, 0, 0]


def test_probabilities_equal_a_softmax_over_each_row_of_logits() -> None:
    torch.manual_seed(0)
    logits_TV, labels_T = torch.randn(150, 40) * 2, torch.randint(40, (150,))
    judged = judge(logits_TV, labels_T)
    best_T5 = logits_TV.topk(5, dim=1).indices
    assert judged.loss_nats_T == pytest.approx(functional.cross_entropy(logits_TV, labels_T, reduction="none").numpy())
    assert (judged.is_top1_T == (best_T5[:, 0] == labels_T).numpy()).all()
    assert (judged.is_top5_T == (best_T5 == labels_T[:, None]).any(dim=1).numpy()).all()
    assert judged.confidence_T == pytest.approx(logits_TV.softmax(dim=1).amax(dim=1).numpy())
    assert 0 < judged.is_top5_T.sum() < 150


def test_equal_logits_for_all_tokens_count_as_no_hit() -> None:
    judged = judge(torch.zeros(3, 40), torch.tensor([0, 7, 39]))
    assert not judged.is_top1_T.any()
    assert not judged.is_top5_T.any()


def test_half_precision_logits_are_judged_in_single_precision() -> None:
    logits_TV = torch.randn(4, 40).to(torch.bfloat16)
    assert judge(logits_TV, torch.arange(4)).loss_nats_T == pytest.approx(
        functional.cross_entropy(logits_TV.float(), torch.arange(4), reduction="none").numpy()
    )


def test_sums_are_kept_separately_for_each_group() -> None:
    judged = Judged(
        loss_nats_T=np.array([1.0, 2.0, 4.0]),
        is_top1_T=np.array([True, False, True]),
        is_top5_T=np.array([True, True, True]),
        confidence_T=np.array([0.5, 0.25, 0.125]),
    )
    sums = Sums.zero(3)
    sums.add(np.array([2, 0, 2]), judged)
    sums.add(np.array([2, 0, 1]), judged)
    assert sums.num_targets_G.tolist() == [2, 1, 3]
    assert sums.loss_nats_G.tolist() == [4.0, 4.0, 6.0]
    assert sums.num_top1_G.tolist() == [0, 1, 3]
    assert sums.num_top5_G.tolist() == [2, 1, 3]
    assert sums.confidence_G.tolist() == [0.5, 0.125, 1.125]
    assert sums.num_targets == 6
