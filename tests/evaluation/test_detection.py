"""Claim: the figures of a discriminator equal those from counting its answers one by one."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from clozeline.encoder.families.layout import TokenIds
from clozeline.evaluation import detection
from clozeline.evaluation.groups import in_folds
from clozeline.language import models
from clozeline.language.detection import ReplacedTokenPair, detection_logits, draw
from clozeline.language.objectives import OBJECTIVES, DetectionBatch, Split
from clozeline.params.pretraining import PretrainParams

NUM_FOLDS = 3


@pytest.fixture
def pair(tiny_pretraining: PretrainParams) -> ReplacedTokenPair:
    params = tiny_pretraining.model.model_copy(update={"family": "electra"})
    model = models.build(params, "rtd", TokenIds(64, pad_id=0, cls_id=2, sep_id=3), seed=3)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.2
    return model.eval()


def measure(
    pair: ReplacedTokenPair, split: Split, batch_tokens: int = 512, advance: Callable[[int], None] = lambda rows: None
) -> detection.DetectionFigures:
    questions = in_folds("rtd", split, seed=5, num_folds=NUM_FOLDS, batch_tokens=batch_tokens)
    return detection.measure(pair, questions, split.vocabulary, advance)


@torch.inference_mode()
def answers(pair: ReplacedTokenPair, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of every real token in every pass, and whether it was replaced; rows are read one by one."""
    scores, truths = [], []
    is_special_V = torch.from_numpy(split.vocabulary.is_special_V)
    for row in range(len(split.rows)):
        tokens = split.read(np.array([row]))
        for fold in range(NUM_FOLDS):
            batch = OBJECTIVES["rtd"].evaluation_batch(split, tokens, 5, fold, NUM_FOLDS)
            assert isinstance(batch, DetectionBatch)
            shown_L = batch.text_ids_BL[0].clone()
            shown_L[batch.slot_T] = draw(models.target_logits(pair, batch), batch.uniform_T, is_special_V)
            scores.append(detection_logits(pair, shown_L[None], None)[0].numpy())
            truths.append((shown_L != batch.text_ids_BL[0]).numpy())
    return np.concatenate(scores), np.concatenate(truths)


def test_the_figures_equal_those_computed_from_single_answers(pair: ReplacedTokenPair, split: Split) -> None:
    score_N, is_replaced_N = answers(pair, split)
    rows: list[int] = []
    found = measure(pair, split, advance=rows.append)
    assert sum(rows) == NUM_FOLDS * len(split.rows)
    assert found.tokens == len(score_N) == NUM_FOLDS * (split.shards.num_tokens + 2 * len(split.rows))
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
    one, same, other = (measure(pair, split, batch_tokens) for batch_tokens in (512, 512, 64))
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
    found = detection.figures_of(np.array(counts))
    assert (found.accuracy, found.auc) == (accuracy, auc)
    assert found.f1 == (1.0 if accuracy == 1.0 and auc else 0.0)
