"""Claim: for documents spread over a split, each token is predicted from all the others."""

import math
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from clozeline.encoder.families.layout import TokenIds
from clozeline.evaluation import groups, measuring
from clozeline.evaluation.groups import in_folds
from clozeline.evaluation.measuring import EncoderFigures
from clozeline.language import models
from clozeline.language.detection import ReplacedTokenPair, detection_logits, draw
from clozeline.language.masking import evaluation_folds
from clozeline.language.models import LanguageModel
from clozeline.language.objectives import OBJECTIVES, DetectionBatch, Split, token_counts
from clozeline.language.shards import TokenShards
from clozeline.params.pretraining import PretrainParams
from clozeline.system.errors import DataError

NUM_FOLDS = 7
MASK = 4
TokensMaker = Callable[..., Path]
DETECTION_NUM_FOLDS = 3


def questions_on(split: Split, batch_tokens: int = 512) -> Iterable[groups.Asked]:
    return groups.in_folds("mlm", split, seed=5, num_folds=NUM_FOLDS, batch_tokens=batch_tokens)


def summed(model: Any, questions: Iterable[groups.Asked], num_groups: int) -> groups.Sums:
    with torch.inference_mode():
        grouping = {"document": groups.by_document(num_groups)}
        return measuring.measure(model, questions, grouping, lambda rows: None)["document"]


def measure(model: Any, split: Split, batch_tokens: int = 512, num_groups: int = 4096) -> EncoderFigures:
    num_documents = split.shards.num_documents
    sums = summed(model, questions_on(split, batch_tokens), min(num_groups, num_documents))
    documents = measuring.DocumentSums.of(split.shards, sums)
    return EncoderFigures.of(documents, num_documents, seed=5, num_samples=200)


def split_of(make_tokens: TokensMaker, *documents: list[int]) -> Split:
    arrays = [np.array(document) for document in documents]
    return Split.open(TokenShards.open(make_tokens(arrays, arrays), "validation"), max_length=32)


@torch.inference_mode()
def loss_and_rank(model: Any, shown_N: np.ndarray, place: int, label: int) -> tuple[float, int]:
    """Return the loss of a token by the stock model, and how many tokens are likelier."""
    logits_V = model(torch.tensor([[2, *shown_N.tolist(), 3]])).logits[0, place + 1]
    loss = functional.cross_entropy(logits_V[None], torch.tensor([label])).item()
    return loss, int((logits_V > logits_V[label]).sum())


def test_every_token_is_a_target_exactly_once(model: LanguageModel, split: Split) -> None:
    assert measure(model, split).target_tokens == split.shards.num_tokens
    tokens = split.read(np.arange(len(split.rows)))
    judging = OBJECTIVES["mlm"].evaluation_batch
    folds = [judging(split, tokens, 5, fold, NUM_FOLDS) for fold in range(NUM_FOLDS)]
    assert sorted(slot for batch in folds for slot in batch.slot_T.tolist()) == sorted(tokens.slot_N.tolist())


def test_two_evaluations_are_bit_equal(model: LanguageModel, split: Split) -> None:
    assert measure(model, split) == measure(model, split)


@pytest.mark.parametrize("batch_tokens", [32, 100, 100_000])
def test_figures_do_not_depend_on_the_batch_size(model: LanguageModel, split: Split, batch_tokens: int) -> None:
    one, other = measure(model, split), measure(model, split, batch_tokens)
    assert other.loss_nats_per_token == pytest.approx(one.loss_nats_per_token, rel=1e-6)
    assert (other.top1, other.top5, other.target_tokens) == (one.top1, one.top5, one.target_tokens)


def test_sums_do_not_depend_on_the_process_or_the_order(model: LanguageModel, split: Split) -> None:
    """P33: masks and sums are functions of tokens, so that shares of several processes add up to the whole."""
    questions = list(questions_on(split))
    whole, *shares = (
        summed(model, some, split.shards.num_documents)
        for some in (questions, *(questions[::-1][n::3] for n in range(3)))
    )
    for field in fields(groups.Sums):
        together = sum(getattr(share, field.name) for share in shares)
        np.testing.assert_allclose(together, getattr(whole, field.name), rtol=1e-12)


def test_figures_equal_those_computed_row_by_row_with_the_stock_model(model: LanguageModel, split: Split) -> None:
    found = []
    for row in range(len(split.rows)):
        tokens = split.read(np.array([row]))
        fold_N = evaluation_folds(5, NUM_FOLDS, tokens.document_N, tokens.position_N)
        for place, fold in enumerate(fold_N):
            shown_N = np.where(fold_N == fold, MASK, tokens.input_ids_N)
            found.append(loss_and_rank(model, shown_N, place, int(tokens.input_ids_N[place])))
    losses, ranks = np.array(found).T
    measured = measure(model, split)
    assert measured.perplexity == pytest.approx(math.exp(losses.mean()), rel=1e-5)
    assert (measured.top1, measured.top5) == pytest.approx(((ranks == 0).mean(), (ranks < 5).mean()))
    assert measured.nats_per_byte == pytest.approx(losses.sum() / split.shards.text_bytes, rel=1e-5)


def test_unknown_tokens_are_charged_log_256_nats_per_byte(model: LanguageModel, make_tokens: TokensMaker) -> None:
    measured = measure(model, split_of(make_tokens, [5, 6, 1, 8, 1], [7, 9]))
    assert (measured.target_tokens, measured.unknown_tokens, measured.validation_tokens) == (5, 2, 7)
    bytes_of_two_tokens = 2 * measured.text_bytes / 7
    expected = 5 * measured.loss_nats_per_token + bytes_of_two_tokens * math.log(256)
    assert measured.nats_per_byte * measured.text_bytes == pytest.approx(expected)


def test_text_of_only_unknown_tokens_has_no_figures(model: LanguageModel, make_tokens: TokensMaker) -> None:
    split = split_of(make_tokens, [1, 1, 1])
    with pytest.raises(DataError, match=r"(?s)are unknown.*3 tokens|3 tokens.*are unknown"):
        measure(model, split)
    assert pseudo_figures(model, split, 3) == {}


def test_intervals_contain_their_figure_and_change_no_other_figure(model: LanguageModel, split: Split) -> None:
    measured, in_blocks = measure(model, split), measure(model, split, num_groups=10)
    for name in ("loss_nats_per_token", "perplexity", "top1", "nats_per_byte"):
        low, figure, high = (getattr(measured, f"{name}{end}") for end in ("_low", "", "_high"))
        assert low < figure < high
        assert getattr(in_blocks, name) == pytest.approx(figure, rel=1e-12)
    assert measured.validation_documents == in_blocks.validation_documents == split.shards.num_documents


def test_calibration_error_is_the_mean_gap_between_confidence_and_accuracy() -> None:
    sums = groups.Sums.zero(15)
    sums.num_targets_G[[3, 14]] = 30, 10
    sums.confidence_G[[3, 14]] = 30 * 0.25, 10 * 0.95
    sums.num_top1_G[[3, 14]] = 12, 6  # accuracy 0.4 and 0.6
    assert measuring.expected_calibration_error(sums) == pytest.approx(0.75 * 0.15 + 0.25 * 0.35)


def test_every_grouping_sees_every_target_in_one_pass(model: LanguageModel, split: Split) -> None:
    groupings = {"document": groups.by_document(10), "confidence": groups.by_confidence()}
    rows_done: list[int] = []
    with torch.inference_mode():
        sums = measuring.measure(model, questions_on(split), groupings, rows_done.append)
    assert sum(rows_done) == NUM_FOLDS * len(split.rows)
    assert {sums[name].num_targets for name in groupings} == {split.shards.num_tokens}
    assert sums["document"].loss_nats_G.sum() == pytest.approx(sums["confidence"].loss_nats_G.sum())


def test_the_unigram_baseline_is_the_cross_entropy_of_training_frequencies(make_tokens: TokensMaker) -> None:
    folder = make_tokens([np.array([5, 5, 5, 6])], [np.array([5, 6, 7])])
    train, validation = TokenShards.open(folder, "train"), TokenShards.open(folder, "validation")
    vocabulary = Split.open(train, max_length=32).vocabulary
    baseline = measuring.measure_unigram(token_counts(train, vocabulary), validation, vocabulary)
    total = 4 + 59  # four tokens seen, and one added for each of the 59 ordinary kinds
    expected = -np.log(np.array([4, 2, 1]) / total).mean()
    assert baseline.loss_nats_per_token == pytest.approx(expected)
    assert baseline.perplexity == pytest.approx(math.exp(expected))
    assert (baseline.top1, baseline.top5) == pytest.approx((1 / 3, 1))  # the two seen, and the first of the others


@pytest.mark.slow
def test_memory_does_not_grow_with_the_split(model: LanguageModel, make_tokens: TokensMaker, tmp_path: Path) -> None:
    """P34: except for the order of rows, some bytes for each, and the sums of a bounded number of document blocks."""

    def peak_bytes(num_documents: int) -> tuple[int, int]:
        """Return the peak memory of Python and NumPy while a split is measured, including its rows."""
        documents = [np.full(20, 7 + place % 50) for place in range(num_documents)]
        tokens = make_tokens(documents[:10], documents).rename(tmp_path / f"{num_documents}")
        split = Split.open(TokenShards.open(tokens, "validation"), max_length=32)
        tracemalloc.start()
        try:
            measure(model, split, num_groups=100)
            return tracemalloc.get_traced_memory()[1], len(split.rows)
        finally:
            tracemalloc.stop()

    (small_peak, small_rows), (large_peak, large_rows) = peak_bytes(200), peak_bytes(2000)
    assert large_peak - small_peak < 100 * (large_rows - small_rows)


def pseudo_figures(model: LanguageModel, split: Split, num_documents: int, batch_tokens: int = 512) -> dict[str, float]:
    some, document_D = measuring.spread(split, num_documents)
    rows_done: list[int] = []
    with torch.inference_mode():
        figures = measuring.measured(
            model, some, document_D, batch_tokens=batch_tokens, seed=1, num_samples=200, advance=rows_done.append
        )
    assert sum(rows_done) == groups.num_copies(some)
    return figures


def test_the_figures_equal_those_of_the_stock_model_with_one_token_masked_at_a_time(
    model: LanguageModel, split: Split
) -> None:
    some, document_D = measuring.spread(split, 5)
    assert document_D.tolist() == [0, 9, 19, 29, 39]
    losses = []
    for row in range(len(some.rows)):
        ids_N = some.read(np.array([row])).input_ids_N
        for place, label in enumerate(ids_N.tolist()):
            shown_N = np.where(np.arange(len(ids_N)) == place, MASK, ids_N)
            losses.append(loss_and_rank(model, shown_N, place, label)[0])
    figures = pseudo_figures(model, split, 5)
    sizes = np.diff(split.shards.offsets.astype(np.int64))[document_D]
    assert figures["pseudo_target_tokens"] == len(losses) == sizes.sum()
    assert figures["pseudo_documents"] == 5
    loss, size = np.mean(losses), 4 * len(losses)
    expected = {"loss_nats_per_token": loss, "perplexity": np.exp(loss), "nats_per_byte": sum(losses) / size}
    for name, figure in expected.items():
        assert figures[f"pseudo_{name}"] == pytest.approx(figure, rel=1e-5)
        assert figures[f"pseudo_{name}_low"] < figure < figures[f"pseudo_{name}_high"]


def test_batch_size_changes_nothing_and_asking_for_too_many_documents_uses_all(
    model: LanguageModel, split: Split
) -> None:
    few = pseudo_figures(model, split, 5)
    assert pseudo_figures(model, split, 5, batch_tokens=40) == pytest.approx(few, rel=1e-6)
    assert pseudo_figures(model, split, 1000)["pseudo_target_tokens"] == split.shards.num_tokens


@pytest.fixture
def pair(tiny_pretraining: PretrainParams) -> ReplacedTokenPair:
    params = tiny_pretraining.model.model_copy(update={"family": "electra"})
    model = models.build(params, "rtd", TokenIds(64, pad_id=0, cls_id=2, sep_id=3), seed=3)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.2
    return model.eval()


def measure_of_detection(
    pair: ReplacedTokenPair, split: Split, batch_tokens: int = 512, advance: Callable[[int], None] = lambda rows: None
) -> measuring.DetectionFigures:
    questions = in_folds("rtd", split, seed=5, num_folds=DETECTION_NUM_FOLDS, batch_tokens=batch_tokens)
    return measuring.measure_detection(pair, questions, split.vocabulary, advance)


@torch.inference_mode()
def answers(pair: ReplacedTokenPair, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of every real token in every pass, and whether it was replaced; rows are read one by one."""
    scores, truths = [], []
    is_special_V = torch.from_numpy(split.vocabulary.is_special_V)
    for row in range(len(split.rows)):
        tokens = split.read(np.array([row]))
        for fold in range(DETECTION_NUM_FOLDS):
            batch = OBJECTIVES["rtd"].evaluation_batch(split, tokens, 5, fold, DETECTION_NUM_FOLDS)
            assert isinstance(batch, DetectionBatch)
            shown_L = batch.text_ids_BL[0].clone()
            shown_L[batch.slot_T] = draw(models.target_logits(pair, batch), batch.uniform_T, is_special_V)
            scores.append(detection_logits(pair, shown_L[None], None)[0].numpy())
            truths.append((shown_L != batch.text_ids_BL[0]).numpy())
    return np.concatenate(scores), np.concatenate(truths)


def test_the_figures_equal_those_computed_from_single_answers(pair: ReplacedTokenPair, split: Split) -> None:
    score_N, is_replaced_N = answers(pair, split)
    rows: list[int] = []
    found = measure_of_detection(pair, split, advance=rows.append)
    assert sum(rows) == DETECTION_NUM_FOLDS * len(split.rows)
    assert found.tokens == len(score_N) == DETECTION_NUM_FOLDS * (split.shards.num_tokens + 2 * len(split.rows))
    says_N = score_N > 0
    above = score_N[is_replaced_N][:, None] - score_N[~is_replaced_N]
    assert found.accuracy == pytest.approx((says_N == is_replaced_N).mean(), abs=1e-3)
    assert found.majority_accuracy == pytest.approx(1 - is_replaced_N.mean(), abs=1e-3)
    assert found.precision == pytest.approx(is_replaced_N[says_N].mean(), abs=2e-3)
    assert found.recall == pytest.approx(says_N[is_replaced_N].mean(), abs=2e-3)
    assert found.f1 == pytest.approx(2 / (1 / found.precision + 1 / found.recall))
    assert found.auc == pytest.approx((above > 0).mean() + (above == 0).mean() / 2, abs=1e-3)
    assert 0.5 < found.majority_accuracy < 1


def test_a_measurement_does_not_depend_on_the_batches(pair: ReplacedTokenPair, split: Split) -> None:
    """P32, P33: except for the one token in thousands whose score moves to another bin by rounding."""
    one, same, other = (measure_of_detection(pair, split, batch_tokens) for batch_tokens in (512, 512, 64))
    assert one == same
    assert other.tokens == one.tokens
    assert (other.auc, other.accuracy) == pytest.approx((one.auc, one.accuracy), abs=1e-3)


@pytest.mark.parametrize(
    ("counts", "accuracy", "auc"),
    [
        ([[4, 2, 0, 0], [0, 0, 1, 3]], 1.0, 1.0),
        ([[0, 0, 0, 6], [4, 0, 0, 0]], 0.0, 0.0),
        ([[6, 0, 0, 0], [4, 0, 0, 0]], 0.6, 0.5),
        ([[6, 0, 0, 0], [0, 0, 0, 0]], 1.0, None),
    ],
    ids=["finds all", "takes each for the other", "says always original", "nothing was replaced"],
)
def test_perfect_and_useless_scores_have_the_expected_figures(
    counts: list[list[int]], accuracy: float, auc: float | None
) -> None:
    found = measuring.figures_of(np.array(counts))
    assert (found.accuracy, found.auc) == (accuracy, auc)
    assert found.f1 == (1.0 if accuracy == 1.0 and auc else 0.0)
