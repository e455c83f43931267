"""A text goes where the earlier texts that it resembles are; content draws the split of the others."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from clozeline.corpus.cleaning.documents import DropReason
from clozeline.corpus.cleaning.near_duplicates import Edges, Sketches
from clozeline.corpus.cleaning.splits import (
    FULL_GROUP,
    HOLDOUT,
    KEPT,
    MAX_GROUP_TEXTS,
    NEAR_DUPLICATE,
    NUM_FIRST_TEXTS,
    TRAIN,
    TWO_SPLITS,
    VALIDATION,
    SplitDecision,
    SplitShares,
    check_sides,
    decide,
)
from clozeline.system.errors import DataError

SHARES = SplitShares(validation=0.2, holdout=0.3)
DRAWS = {VALIDATION: 0.1, HOLDOUT: 0.4, TRAIN: 0.9}


def edges(*found: tuple[int, int, float]) -> Edges:
    columns = np.array(sorted(found, key=lambda edge: (edge[1], edge[0]))).reshape(-1, 3)
    return Edges(columns[:, 0].astype(np.int64), columns[:, 1].astype(np.int64), columns[:, 2], len(found))


def decided(drawn: Sequence[int], *found: tuple[int, int, float], parents: Sequence[int] = ()) -> SplitDecision:
    """Return the decision on texts whose content draws the splits `drawn`; `found` are (earlier, later, similarity)."""
    count = len(drawn)
    numbers, draw_N = np.arange(count), np.array([DRAWS[side] for side in drawn])
    sketches = Sketches(numbers, np.array(parents or numbers), draw_N, numbers, numbers, Path(), Path(), [])
    return decide(edges(*found), sketches, SHARES, near_duplicate=0.8)


def test_the_later_of_two_near_duplicates_is_dropped() -> None:
    found = decided([TRAIN] * 4, (0, 2, 0.9), (1, 3, 0.79))
    assert found.fate_N.tolist() == [KEPT, KEPT, NEAR_DUPLICATE, KEPT]


def test_a_text_similar_to_only_a_dropped_text_is_kept() -> None:
    found = decided([TRAIN] * 4, (0, 1, 0.9), (1, 2, 0.9), (2, 3, 0.9))
    assert found.fate_N.tolist() == [KEPT, NEAR_DUPLICATE, KEPT, NEAR_DUPLICATE]


def test_similar_texts_form_one_group_named_after_the_earliest() -> None:
    found = decided([TRAIN] * 6, (1, 4, 0.6), (4, 5, 0.5), (2, 3, 0.7))
    assert found.root_N.tolist() == [0, 1, 2, 2, 1, 1]
    assert np.concatenate(list(found.sizes())).tolist() == [1, 3, 2]


def test_a_text_joins_the_split_of_the_earliest_text_that_it_resembles() -> None:
    found = decided([VALIDATION, HOLDOUT, TRAIN, HOLDOUT, TRAIN, TRAIN], (0, 3, 0.6), (1, 4, 0.6), (3, 5, 0.6))
    assert found.side_N.tolist() == [VALIDATION, HOLDOUT, TRAIN, VALIDATION, HOLDOUT, VALIDATION]


def test_a_text_similar_to_two_splits_is_dropped_and_counted() -> None:
    found = decided([TRAIN, VALIDATION, TRAIN], (0, 2, 0.6), (1, 2, 0.6))
    assert found.fate_N.tolist() == [KEPT, KEPT, TWO_SPLITS]
    assert found.side_N[:2].tolist() == [TRAIN, VALIDATION]
    assert found.num_dropped() == {
        DropReason.NEAR_DUPLICATE: 0,
        DropReason.TWO_SPLITS: 1,
        DropReason.FULL_GROUP: 0,
    }


def test_a_text_similar_to_two_splits_does_not_affect_others() -> None:
    found = decided([TRAIN, VALIDATION, TRAIN, HOLDOUT], (0, 2, 0.6), (1, 2, 0.6), (2, 3, 0.9))
    assert (found.fate_N[3], found.side_N[3]) == (KEPT, HOLDOUT)


def test_a_near_duplicate_is_counted_as_such_even_if_it_resembles_another_split() -> None:
    assert decided([TRAIN, VALIDATION, TRAIN], (0, 2, 0.6), (1, 2, 0.9)).fate_N[2] == NEAR_DUPLICATE


def test_a_text_follows_the_text_whose_near_duplicate_it_resembles() -> None:
    found = decided([VALIDATION, TRAIN, TRAIN], (0, 1, 0.9), (1, 2, 0.6))
    assert found.fate_N.tolist() == [KEPT, NEAR_DUPLICATE, KEPT]
    assert found.side_N[2] == VALIDATION
    assert found.root_N.tolist() == [0, 0, 0]


def test_the_parts_of_one_document_stay_together() -> None:
    found = decided([TRAIN, VALIDATION, TRAIN, HOLDOUT, TRAIN], parents=[0, 1, 1, 1, 4])
    assert found.root_N.tolist() == [0, 1, 1, 1, 4]
    assert found.side_N.tolist() == [TRAIN, VALIDATION, VALIDATION, VALIDATION, TRAIN]


def test_only_the_part_of_a_document_that_resembles_another_split_is_dropped() -> None:
    found = decided([TRAIN, VALIDATION, TRAIN, TRAIN], (0, 2, 0.6), parents=[0, 1, 1, 1])
    assert found.fate_N.tolist() == [KEPT, KEPT, TWO_SPLITS, KEPT]
    assert found.side_N[3] == VALIDATION


def test_parts_after_a_dropped_first_part_stay_together() -> None:
    drawn = [TRAIN, VALIDATION, TRAIN, HOLDOUT, TRAIN, TRAIN]
    found = decided(drawn, (0, 2, 0.6), (1, 2, 0.6), parents=[0, 1, 2, 2, 2, 2])
    assert found.fate_N.tolist() == [KEPT, KEPT, TWO_SPLITS, KEPT, KEPT, KEPT]
    assert found.side_N[3:].tolist() == [HOLDOUT, HOLDOUT, HOLDOUT]


@pytest.mark.parametrize("side", [VALIDATION, HOLDOUT])
def test_a_full_group_outside_of_training_takes_no_more_texts(side: int) -> None:
    count = MAX_GROUP_TEXTS + 2
    found = decided([side] + [TRAIN] * (count - 1), *((0, later, 0.6) for later in range(1, count)))
    assert set(found.fate_N[:MAX_GROUP_TEXTS]) == {KEPT}
    assert set(found.fate_N[MAX_GROUP_TEXTS:]) == {FULL_GROUP}
    assert found.num_full() == 1


def test_groups_in_training_have_no_size_limit() -> None:
    count = MAX_GROUP_TEXTS + 2
    found = decided([TRAIN] + [HOLDOUT] * (count - 1), *((0, later, 0.6) for later in range(1, count)))
    assert found.kept_by_side() == [count, 0, 0]
    assert found.num_full() == 0


def test_added_texts_change_no_decision_about_earlier_ones() -> None:
    draw = np.random.default_rng(5)
    drawn = draw.integers(0, 3, 400).tolist()
    pairs = {tuple(sorted(pair)) for pair in draw.integers(0, 400, (900, 2)).tolist() if pair[0] != pair[1]}
    found = [(*pair, float(draw.uniform(0.5, 1))) for pair in sorted(pairs)]
    parents = [number - number % 3 if number % 10 < 3 else number for number in range(400)]
    whole = decided(drawn, *found, parents=parents)
    start = decided(drawn[:300], *(edge for edge in found if edge[1] < 300), parents=parents[:300])
    assert {KEPT, NEAR_DUPLICATE, TWO_SPLITS} <= set(whole.fate_N)
    assert whole.fate_N[:300].tolist() == start.fate_N.tolist()
    assert whole.side_N[:300].tolist() == start.side_N.tolist()


def test_splits_have_the_requested_shares() -> None:
    draws = np.random.default_rng(0).random(20_000)
    numbers = np.arange(20_000)
    sketches = Sketches(numbers, numbers, draws, numbers, numbers, Path(), Path(), [])
    kept = decide(edges(), sketches, SHARES, near_duplicate=0.8).kept_by_side()
    assert np.array(kept) / 20_000 == pytest.approx([0.5, 0.2, 0.3], abs=0.01)


def test_an_empty_split_is_refused_with_the_least_number_of_texts() -> None:
    with pytest.raises(DataError, match="too little text to split: `validation`") as caught:
        check_sides(decided([TRAIN, TRAIN, HOLDOUT]), SHARES, "notes")
    assert "3 texts in 3" in str(caught.value)
    assert "at least 15 " in str(caught.value)


def test_a_part_that_was_not_requested_may_be_empty() -> None:
    check_sides(decided([TRAIN, VALIDATION]), SplitShares(0.2, 0.0), "notes")


@pytest.mark.parametrize(("fraction", "more"), [(0.02, 0.08), (0.1, 0.0), (0.2, 0.0)])
def test_the_first_texts_give_a_tenth_to_validation(params_of, fraction: float, more: float) -> None:
    params = params_of(validation_fraction=fraction)
    assert SplitShares.of(params) == SplitShares(fraction, params.holdout_fraction, pytest.approx(more))


def test_the_shares_leave_text_for_training_beside_a_large_holdout(params_of) -> None:
    shares = SplitShares.of(params_of(validation_fraction=0.01, holdout_fraction=0.95))
    assert shares.validation + shares.holdout + shares.more_validation < 1


def test_a_small_source_has_enough_validation_text_and_keeps_it_when_it_grows() -> None:
    numbers, draws = np.arange(4 * NUM_FIRST_TEXTS), np.random.default_rng(0).random(4 * NUM_FIRST_TEXTS)

    def sides_of(num_texts: int) -> list[int]:
        first = numbers[:num_texts]
        sketches = Sketches(first, first, draws[:num_texts], first, first, Path(), Path(), [])
        shares = SplitShares(0.02, 0.3, more_validation=0.08)
        return decide(edges(), sketches, shares, near_duplicate=0.8).side_N.tolist()

    small, grown = sides_of(NUM_FIRST_TEXTS), sides_of(4 * NUM_FIRST_TEXTS)
    assert grown[:NUM_FIRST_TEXTS] == small
    assert small.count(VALIDATION) == pytest.approx(150, abs=30)
    assert grown[NUM_FIRST_TEXTS:].count(VALIDATION) == pytest.approx(90, abs=25)
