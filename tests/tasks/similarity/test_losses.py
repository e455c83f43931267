"""Claim: the losses of a batch of pairs follow the papers, and parts that fit into memory train like the batch."""

from math import exp, log

import pytest
import torch

from clozeline.tasks.rows import EncodedBatch
from clozeline.tasks.similarity.data import PairBatch, Targets
from clozeline.tasks.similarity.scored import cosine_losses, ranking_losses

A, B = [1.0, 0.0], [0.0, 1.0]


def targets(firsts: list[int], seconds: list[int]) -> Targets:
    return Targets(None, torch.tensor(firsts), torch.tensor(seconds))


def test_the_loss_of_a_scored_pair_is_the_squared_error_of_its_cosine() -> None:
    losses = cosine_losses(torch.tensor([A, A]), torch.tensor([A, B]), torch.tensor([0.75, 0.5]))
    assert losses.tolist() == [0.0625, 0.25]


def test_the_other_pairs_of_a_batch_are_the_negatives_in_both_directions() -> None:
    loss_B = ranking_losses(torch.tensor([A, A]), torch.tensor([A, B]), targets([0, 1], [0, 1]), temperature=0.5)
    nearer, farther = -log(exp(2) / (exp(2) + 1)), -log(1 / (exp(2) + 1))
    assert loss_B.tolist() == pytest.approx([(nearer + log(2)) / 2, (farther + log(2)) / 2])


@pytest.mark.parametrize("same", [targets([0, 0], [0, 1]), targets([0, 1], [0, 0])])
def test_pairs_that_share_a_text_are_not_negatives_of_each_other(same: Targets) -> None:
    assert ranking_losses(torch.tensor([A, A]), torch.tensor([A, A]), same, temperature=0.1).tolist() == [0, 0]


def test_each_part_of_a_batch_sees_every_other_pair_once() -> None:
    side = EncodedBatch(torch.arange(20).reshape(10, 2), None)
    whole = PairBatch.whole(side, side, targets([*range(10)], [*range(10)]))
    for first, last in [(0, 3), (3, 6), (6, 10), (4, 5)]:
        part = whole.rows(first, last)
        others = [row for other in part.others() for row in range(other.first, other.last)]
        assert others == [row for row in range(10) if not first <= row < last]
        assert all(other.num_rows <= part.num_rows for other in part.others())
        assert part.num_slots == (last - first) * 4
    assert whole.rows(2, 8).rows(1, 3).first == 3
