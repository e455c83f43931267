import numpy as np
import pytest
import torch
from torch.nn import functional

from clozeline.evaluation.groups import Judged, Sums, judge


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
