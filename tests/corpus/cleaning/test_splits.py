"""A text goes where the earlier texts that it resembles are; content draws the split of the others."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from clozeline.corpus.cleaning import splits
from clozeline.corpus.cleaning.documents import DropReason
from clozeline.corpus.cleaning.near_duplicates import Edges, Sketches
from clozeline.corpus.cleaning.splits import MAX_GROUP_TEXTS, NUM_FIRST_TEXTS, SplitDecision, SplitShares, decide
from clozeline.system.errors import DataError

SHARES = SplitShares(validation=0.2, holdout=0.3)
KEPT, NEAR, TWO, FULL = splits.KEPT, splits.NEAR_DUPLICATE, splits.TWO_SPLITS, splits.FULL_GROUP
T, V, H = splits.TRAIN, splits.VALIDATION, splits.HOLDOUT
DRAWS = {V: 0.1, H: 0.4, T: 0.9}

# (earlier text, later text, similarity)
Found = Sequence[tuple[int, int, float]]


def decided_by_draws(
    draws: Sequence[float], found: Found = (), parents: Sequence[int] = (), shares: SplitShares = SHARES
) -> SplitDecision:
    numbers = np.arange(len(draws))
    ordered = np.array(sorted(found, key=lambda edge: (edge[1], edge[0]))).reshape(-1, 3)
    edges = Edges(ordered[:, 0].astype(np.int64), ordered[:, 1].astype(np.int64), ordered[:, 2], len(found))
    parent_N = np.array(parents or numbers)
    sketches = Sketches(numbers, parent_N, np.array(draws), numbers, numbers, Path(), Path(), [])
    return decide(edges, sketches, shares, near_duplicate=0.8)


def decided(drawn: Sequence[int], found: Found = (), parents: Sequence[int] = ()) -> SplitDecision:
    """Return the decision on texts whose content draws the splits `drawn`."""
    return decided_by_draws([DRAWS[side] for side in drawn], found, parents)


@pytest.mark.parametrize(
    ("drawn", "found", "fates"),
    [
        ([T] * 4, [(0, 2, 0.9), (1, 3, 0.79)], [KEPT, KEPT, NEAR, KEPT]),
        ([T] * 4, [(0, 1, 0.9), (1, 2, 0.9), (2, 3, 0.9)], [KEPT, NEAR, KEPT, NEAR]),  # similar to a dropped one alone
        ([T, V, T], [(0, 2, 0.6), (1, 2, 0.6)], [KEPT, KEPT, TWO]),
        ([T, V, T], [(0, 2, 0.6), (1, 2, 0.9)], [KEPT, KEPT, NEAR]),  # although it resembles another split too
    ],
)
def test_near_duplicates_and_texts_similar_to_two_splits_are_dropped_and_counted(drawn, found, fates) -> None:
    decision = decided(drawn, found)
    assert decision.fate_N.tolist() == fates
    kept = [place for place, fate in enumerate(fates) if fate == KEPT]
    assert decision.side_N[kept].tolist() == [drawn[place] for place in kept], "they move no other text"
    reasons = {NEAR: DropReason.NEAR_DUPLICATE, TWO: DropReason.TWO_SPLITS, FULL: DropReason.FULL_GROUP}
    assert decision.num_dropped() == {reason: fates.count(fate) for fate, reason in reasons.items()}


def test_similar_texts_form_one_group_named_after_the_earliest() -> None:
    found = decided([T] * 6, [(1, 4, 0.6), (4, 5, 0.5), (2, 3, 0.7)])
    assert found.root_N.tolist() == [0, 1, 2, 2, 1, 1]
    assert np.concatenate(list(found.sizes())).tolist() == [1, 3, 2]


def test_a_text_joins_the_split_of_the_earliest_text_that_it_resembles() -> None:
    found = decided([V, H, T, H, T, T], [(0, 3, 0.6), (1, 4, 0.6), (3, 5, 0.6)])
    assert found.side_N.tolist() == [V, H, T, V, H, V]
    through_a_dropped_one = decided([V, T, T], [(0, 1, 0.9), (1, 2, 0.6)])
    assert through_a_dropped_one.side_N[2] == V
    assert through_a_dropped_one.root_N.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("drawn", "found", "parents", "fates", "sides"),
    [
        ([T, V, T, H, T], [], [0, 1, 1, 1, 4], [KEPT] * 5, [T, V, V, V, T]),
        ([T, V, T, T], [(0, 2, 0.6)], [0, 1, 1, 1], [KEPT, KEPT, TWO, KEPT], [T, V, None, V]),
        (
            [T, V, T, H, T],
            [(0, 2, 0.6), (1, 2, 0.6)],
            [0, 1, 2, 2, 2],
            [KEPT, KEPT, TWO, KEPT, KEPT],
            [T, V, None, H, H],
        ),
    ],
    ids=["alone", "one resembles another split", "after a dropped first part"],
)
def test_the_parts_of_one_document_stay_together(drawn, found, parents, fates, sides: list[int | None]) -> None:
    """Only the part that resembles another split is dropped."""
    decision = decided(drawn, found, parents)
    assert decision.fate_N.tolist() == fates
    assert all(side is None or decision.side_N[place] == side for place, side in enumerate(sides))


@pytest.mark.parametrize("side", [T, V, H])
def test_a_full_group_outside_of_training_takes_no_more_texts(side: int) -> None:
    count = MAX_GROUP_TEXTS + 2
    found = decided([side] + [H if side == T else T] * (count - 1), [(0, later, 0.6) for later in range(1, count)])
    assert set(found.fate_N[:MAX_GROUP_TEXTS]) == {KEPT}
    assert set(found.fate_N[MAX_GROUP_TEXTS:]) == {KEPT if side == T else FULL}
    assert found.num_full() == (side != T)


def test_added_texts_change_no_decision_about_earlier_ones() -> None:
    draw = np.random.default_rng(5)
    drawn = draw.integers(0, 3, 400).tolist()
    pairs = {tuple(sorted(pair)) for pair in draw.integers(0, 400, (900, 2)).tolist() if pair[0] != pair[1]}
    found = [(*pair, float(draw.uniform(0.5, 1))) for pair in sorted(pairs)]
    parents = [number - number % 3 if number % 10 < 3 else number for number in range(400)]
    whole = decided(drawn, found, parents)
    start = decided(drawn[:300], [edge for edge in found if edge[1] < 300], parents[:300])
    assert {KEPT, NEAR, TWO} <= set(whole.fate_N)
    assert whole.fate_N[:300].tolist() == start.fate_N.tolist()
    assert whole.side_N[:300].tolist() == start.side_N.tolist()


def test_splits_have_the_requested_shares() -> None:
    kept = decided_by_draws(np.random.default_rng(0).random(20_000)).kept_by_side()
    assert np.array(kept) / 20_000 == pytest.approx([0.5, 0.2, 0.3], abs=0.01)


def test_an_empty_split_that_was_requested_is_refused_with_the_least_number_of_texts() -> None:
    with pytest.raises(DataError, match=r"(?s)`validation`.*3 texts.*have 15 "):
        splits.check_sides(decided([T, T, H]), SHARES, "notes")
    splits.check_sides(decided([T, V]), SplitShares(0.2, 0.0), "notes")


def test_the_first_texts_give_a_tenth_to_validation_and_leave_text_for_training(params_of) -> None:
    for fraction, more in ((0.02, 0.08), (0.2, 0.0)):
        params = params_of(validation_fraction=fraction)
        assert SplitShares.of(params) == SplitShares(fraction, params.holdout_fraction, pytest.approx(more))
    shares = SplitShares.of(params_of(validation_fraction=0.01, holdout_fraction=0.95))
    assert shares.validation + shares.holdout + shares.more_validation < 1


def test_a_small_source_has_enough_validation_text_and_keeps_it_when_it_grows() -> None:
    draws, shares = np.random.default_rng(0).random(4 * NUM_FIRST_TEXTS), SplitShares(0.02, 0.3, more_validation=0.08)
    small = decided_by_draws(draws[:NUM_FIRST_TEXTS], shares=shares).side_N.tolist()
    grown = decided_by_draws(draws, shares=shares).side_N.tolist()
    assert grown[:NUM_FIRST_TEXTS] == small
    assert small.count(V) == pytest.approx(150, abs=30)
    assert grown[NUM_FIRST_TEXTS:].count(V) == pytest.approx(90, abs=25)
