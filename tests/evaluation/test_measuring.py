"""Claim: for documents spread over a split, each token is predicted from all the others."""

import math
import tracemalloc
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import PreTrainedModel

from clozeline.evaluation import groups, measuring
from clozeline.evaluation.groups import Sums, by_confidence, by_document
from clozeline.evaluation.measuring import DocumentSums, EncoderFigures, expected_calibration_error
from clozeline.evaluation.measuring import measure as sums_of
from clozeline.language.masking import evaluation_folds
from clozeline.language.models import LanguageModel
from clozeline.language.objectives import OBJECTIVES, Split, token_counts
from clozeline.language.shards import TokenShards
from clozeline.system.errors import DataError

NUM_FOLDS = 7
TokensMaker = Callable[..., Path]


def measure(model: PreTrainedModel, split: Split, batch_tokens: int = 512, num_groups: int = 4096) -> EncoderFigures:
    questions = groups.in_folds("mlm", split, seed=5, num_folds=NUM_FOLDS, batch_tokens=batch_tokens)
    grouping = by_document(min(num_groups, split.shards.num_documents))
    with torch.inference_mode():
        sums = sums_of(model, questions, {"document": grouping}, lambda rows: None)["document"]
    documents = DocumentSums.of(split.shards, sums)
    return EncoderFigures.of(documents, split.shards.num_documents, seed=5, num_samples=200)


def test_every_token_is_a_target_exactly_once(model: PreTrainedModel, split: Split) -> None:
    assert measure(model, split).target_tokens == split.shards.num_tokens
    tokens = split.read(np.arange(len(split.rows)))
    judging = OBJECTIVES["mlm"].evaluation_batch
    folds = [judging(split, tokens, 5, fold, NUM_FOLDS) for fold in range(NUM_FOLDS)]
    slots = [slot for batch in folds for slot in batch.slot_T.tolist()]
    assert sorted(slots) == sorted(tokens.slot_N.tolist())


def test_two_evaluations_are_bit_equal(model: PreTrainedModel, split: Split) -> None:
    assert measure(model, split) == measure(model, split)


@pytest.mark.parametrize("batch_tokens", [32, 100, 100_000])
def test_figures_do_not_depend_on_the_batch_size(model: PreTrainedModel, split: Split, batch_tokens: int) -> None:
    one, other = measure(model, split), measure(model, split, batch_tokens)
    assert other.loss_nats_per_token == pytest.approx(one.loss_nats_per_token, rel=1e-6)
    assert (other.top1, other.top5, other.target_tokens) == (one.top1, one.top5, one.target_tokens)


@pytest.mark.parametrize("num_processes", [2, 3])
def test_sums_do_not_depend_on_the_process_or_the_order(
    model: PreTrainedModel, split: Split, num_processes: int
) -> None:
    """P33: masks and sums are functions of tokens, so that shares of several processes add up to the whole."""
    questions = list(groups.in_folds("mlm", split, seed=5, num_folds=NUM_FOLDS, batch_tokens=512))
    groupings = {"document": by_document(split.shards.num_documents)}

    def summed(some: list[groups.Asked]) -> Sums:
        with torch.inference_mode():
            return sums_of(model, some, groupings, lambda rows: None)["document"]

    whole = summed(questions)
    shares = [summed(questions[::-1][rank::num_processes]) for rank in range(num_processes)]
    for field in fields(Sums):
        together = sum(getattr(share, field.name) for share in shares)
        np.testing.assert_allclose(together, getattr(whole, field.name), rtol=1e-12)


@torch.inference_mode()
def test_figures_equal_those_computed_row_by_row_with_the_stock_model(model: PreTrainedModel, split: Split) -> None:
    losses, ranks = [], []
    for row in range(len(split.rows)):
        tokens = split.read(np.array([row]))
        fold_N = evaluation_folds(5, NUM_FOLDS, tokens.document_N, tokens.position_N)
        for place, fold in enumerate(fold_N):
            shown_N = np.where(fold_N == fold, 4, tokens.input_ids_N)
            input_ids_BL = torch.tensor([[2, *shown_N.tolist(), 3]])
            logits_V = model(input_ids_BL).logits[0, place + 1]
            label = int(tokens.input_ids_N[place])
            losses.append(functional.cross_entropy(logits_V[None], torch.tensor([label])).item())
            ranks.append(int((logits_V > logits_V[label]).sum()))
    measured = measure(model, split)
    assert measured.perplexity == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)
    assert measured.top1 == pytest.approx(np.mean(np.array(ranks) == 0))
    assert measured.top5 == pytest.approx(np.mean(np.array(ranks) < 5))
    assert measured.nats_per_byte == pytest.approx(np.sum(losses) / split.shards.text_bytes, rel=1e-5)


def test_unknown_tokens_are_charged_log_256_nats_per_byte(model: PreTrainedModel, make_tokens: TokensMaker) -> None:
    unknown, known = 1, 7
    documents = [np.array([5, 6, unknown, 8, unknown]), np.array([known, 9])]
    split = Split.open(TokenShards.open(make_tokens(documents, documents), "validation"), max_length=32)
    measured = measure(model, split)
    assert (measured.target_tokens, measured.unknown_tokens, measured.validation_tokens) == (5, 2, 7)
    bytes_of_two_tokens = 2 * measured.text_bytes / 7
    expected = 5 * measured.loss_nats_per_token + bytes_of_two_tokens * math.log(256)
    assert measured.nats_per_byte * measured.text_bytes == pytest.approx(expected)


def test_text_of_only_unknown_tokens_is_reported(model: PreTrainedModel, make_tokens: TokensMaker) -> None:
    nothing_known = [np.array([1, 1, 1])]
    split = Split.open(TokenShards.open(make_tokens(nothing_known, nothing_known), "validation"), max_length=32)
    with pytest.raises(DataError, match="are unknown") as raised:
        measure(model, split)
    assert "3 tokens" in str(raised.value)


def test_intervals_contain_their_figure_and_change_no_other_figure(model: PreTrainedModel, split: Split) -> None:
    measured, in_blocks = measure(model, split), measure(model, split, num_groups=10)
    for name in ("loss_nats_per_token", "perplexity", "top1", "nats_per_byte"):
        low, figure, high = (getattr(measured, f"{name}{end}") for end in ("_low", "", "_high"))
        assert low < figure < high
        assert getattr(in_blocks, name) == pytest.approx(figure, rel=1e-12)
    assert measured.validation_documents == in_blocks.validation_documents == split.shards.num_documents


def test_calibration_error_is_the_mean_gap_between_confidence_and_accuracy() -> None:
    sums = Sums.zero(15)
    sums.num_targets_G[[3, 14]] = 30, 10
    sums.confidence_G[[3, 14]] = 30 * 0.25, 10 * 0.95
    sums.num_top1_G[[3, 14]] = 12, 6  # accuracy 0.4 and 0.6
    assert expected_calibration_error(sums) == pytest.approx(0.75 * 0.15 + 0.25 * 0.35)


def test_every_grouping_sees_every_target_in_one_pass(model: PreTrainedModel, split: Split) -> None:
    questions = groups.in_folds("mlm", split, seed=5, num_folds=NUM_FOLDS, batch_tokens=512)
    groupings = {"document": by_document(10), "confidence": by_confidence()}
    rows_done: list[int] = []
    with torch.inference_mode():
        sums = sums_of(model, questions, groupings, rows_done.append)
    assert sum(rows_done) == NUM_FOLDS * len(split.rows)
    for name in groupings:
        assert sums[name].num_targets == split.shards.num_tokens
    assert sums["document"].loss_nats_G.sum() == pytest.approx(sums["confidence"].loss_nats_G.sum())


def test_the_unigram_baseline_is_the_cross_entropy_of_training_frequencies(make_tokens: object) -> None:
    folder = make_tokens([np.array([5, 5, 5, 6])], [np.array([5, 6, 7])])
    train, validation = TokenShards.open(folder, "train"), TokenShards.open(folder, "validation")
    vocabulary = Split.open(train, max_length=32).vocabulary
    baseline = measuring.measure_unigram(token_counts(train, vocabulary), validation, vocabulary)
    total = 4 + 59  # four tokens seen, and one added for each of the 59 ordinary kinds
    expected = -np.log(np.array([4, 2, 1]) / total).mean()
    assert baseline.loss_nats_per_token == pytest.approx(expected)
    assert baseline.perplexity == pytest.approx(math.exp(expected))
    assert baseline.top1 == pytest.approx(1 / 3)
    assert baseline.top5 == pytest.approx(1)  # the two that were seen, and the first of the others


def peak_bytes(model: PreTrainedModel, tokens: Path) -> tuple[int, int]:
    """Return the peak memory of Python and NumPy while a split is measured, including its rows."""
    split = Split.open(TokenShards.open(tokens, "validation"), max_length=32)
    tracemalloc.start()
    try:
        measure(model, split, num_groups=100)
        return tracemalloc.get_traced_memory()[1], len(split.rows)
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_split(model: PreTrainedModel, make_tokens: TokensMaker, tmp_path: Path) -> None:
    """P34: except for the order of rows, some bytes for each, and the sums of a bounded number of document blocks."""
    documents = [np.full(20, 7 + place % 50) for place in range(2000)]
    small = make_tokens(documents[:10], documents[:200])
    small_peak, small_rows = peak_bytes(model, small.rename(tmp_path / "small"))
    large_peak, large_rows = peak_bytes(model, make_tokens(documents[:10], documents))
    assert large_peak - small_peak < 100 * (large_rows - small_rows)


MASK = 4


def measured(model: LanguageModel, split: Split, num_documents: int, batch_tokens: int = 512) -> dict[str, float]:
    some, document_D = measuring.spread(split, num_documents)
    rows_done: list[int] = []
    with torch.inference_mode():
        figures = measuring.measured(
            model, some, document_D, batch_tokens=batch_tokens, seed=1, num_samples=200, advance=rows_done.append
        )
    assert sum(rows_done) == groups.num_copies(some)
    return figures


@torch.inference_mode()
def test_the_figures_equal_those_of_the_stock_model_with_one_token_masked_at_a_time(
    model: LanguageModel, split: Split
) -> None:
    some, document_D = measuring.spread(split, 5)
    assert document_D.tolist() == [0, 9, 19, 29, 39]
    losses = []
    for row in range(len(some.rows)):
        input_ids_N = some.read(np.array([row])).input_ids_N
        for place, label in enumerate(input_ids_N.tolist()):
            shown_N = input_ids_N.copy()
            shown_N[place] = MASK
            logits_BLV = model(torch.tensor([[2, *shown_N.tolist(), 3]])).logits
            losses.append(functional.cross_entropy(logits_BLV[0, place + 1][None], torch.tensor([label])).item())
    figures = measured(model, split, 5)
    sizes = np.diff(split.shards.offsets.astype(np.int64))[document_D]
    assert figures["pseudo_target_tokens"] == len(losses) == sizes.sum()
    assert figures["pseudo_documents"] == 5
    assert figures["pseudo_loss_nats_per_token"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert figures["pseudo_perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    assert figures["pseudo_nats_per_byte"] == pytest.approx(sum(losses) / (4 * len(losses)), rel=1e-5)
    for name in ("loss_nats_per_token", "perplexity", "nats_per_byte"):
        assert figures[f"pseudo_{name}_low"] < figures[f"pseudo_{name}"] < figures[f"pseudo_{name}_high"]


def test_batch_size_changes_nothing_and_asking_for_too_many_documents_uses_all(
    model: LanguageModel, split: Split
) -> None:
    assert measured(model, split, 5, batch_tokens=40) == pytest.approx(measured(model, split, 5), rel=1e-6)
    assert measured(model, split, 1000)["pseudo_target_tokens"] == split.shards.num_tokens


def test_documents_without_a_known_token_have_no_figures(
    model: LanguageModel, make_tokens: Callable[..., Path]
) -> None:
    unknown = [np.array([1, 1, 1])]
    split = Split.open(TokenShards.open(make_tokens(unknown, unknown), "validation"), max_length=32)
    assert measured(model, split, 3) == {}
