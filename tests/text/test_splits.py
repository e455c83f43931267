from pathlib import Path

import numpy as np
import pytest

from clozeline.errors import DataError
from clozeline.text.near_duplicates import Edges
from clozeline.text.sketches import Sketches
from clozeline.text.splits import (
    HOLDOUT,
    TRAIN,
    VALIDATION,
    Groups,
    SplitShares,
    assign_sides,
    check_sides,
    groups,
    near_duplicates,
)

SHARES = SplitShares(validation=0.2, holdout=0.3)


def edges(*found: tuple[int, int, float]) -> Edges:
    columns = np.array(sorted(found)).reshape(-1, 3)
    return Edges(columns[:, 0].astype(np.int64), columns[:, 1].astype(np.int64), columns[:, 2], len(found))


def sketches(parents: list[int]) -> Sketches:
    count = len(parents)
    numbers = np.arange(count)
    return Sketches(numbers, np.array(parents), np.zeros(count), numbers, numbers, Path(), Path(), [])


def none_dropped(count: int) -> np.ndarray:
    return np.zeros(count, dtype=bool)


def test_the_later_of_two_near_duplicates_is_dropped() -> None:
    dropped = near_duplicates(edges((0, 2, 0.9), (1, 3, 0.79)), 4, 0.8)
    assert dropped.tolist() == [False, False, True, False]


def test_a_text_similar_only_to_a_dropped_text_is_kept() -> None:
    dropped = near_duplicates(edges((0, 1, 0.9), (1, 2, 0.9), (2, 3, 0.9)), 4, 0.8)
    assert dropped.tolist() == [False, True, False, True]


def test_similar_texts_are_one_group_named_by_the_earliest() -> None:
    found = groups(edges((1, 4, 0.6), (4, 5, 0.5), (2, 3, 0.7)), sketches([0, 1, 2, 3, 4, 5]), none_dropped(6))
    assert found.root_N.tolist() == [0, 1, 2, 2, 1, 1]
    assert found.size_N.tolist() == [1, 3, 2, 2, 3, 3]


def test_a_dropped_text_joins_its_neighbours_into_a_group_without_being_counted() -> None:
    dropped = np.array([False, True, False])
    found = groups(edges((0, 1, 0.9), (1, 2, 0.6)), sketches([0, 1, 2]), dropped)
    assert found.root_N.tolist() == [0, 0, 0]
    assert found.size_N.tolist() == [2, 2, 2]


def test_the_parts_of_one_document_stay_together() -> None:
    found = groups(edges(), sketches([0, 1, 1, 1, 4]), none_dropped(5))
    assert found.root_N.tolist() == [0, 1, 1, 1, 4]


def test_a_group_goes_where_its_earliest_text_is_drawn() -> None:
    together = Groups(root_N=np.array([0, 1, 2, 0, 1]), size_N=np.array([2, 2, 1, 2, 2]))
    sides = assign_sides(together, np.array([0.1, 0.4, 0.6, 0.99, 0.99]), SHARES)
    assert sides.tolist() == [VALIDATION, HOLDOUT, TRAIN, VALIDATION, HOLDOUT]


def test_a_giant_group_goes_to_train() -> None:
    together = Groups(root_N=np.zeros(201, dtype=np.int64), size_N=np.full(201, 201))
    assert set(assign_sides(together, np.zeros(201), SHARES)) == {TRAIN}


def test_splits_have_the_requested_shares() -> None:
    draws = np.random.default_rng(0).random(20_000)
    numbers = np.arange(20_000)
    sides = assign_sides(Groups(numbers, np.ones(20_000, dtype=np.int64)), draws, SHARES)
    assert np.bincount(sides) / 20_000 == pytest.approx([0.5, 0.2, 0.3], abs=0.01)


def test_an_empty_split_is_refused_with_the_least_number_of_texts() -> None:
    alone = Groups(np.arange(3), np.ones(3, dtype=np.int64))
    with pytest.raises(DataError, match="too little text to split: `validation` is empty") as caught:
        check_sides([2, 0, 1], alone, SHARES, "notes")
    assert "3 texts in 3 groups" in str(caught.value.given)
    assert "at least 15 texts" in caught.value.expected


def test_a_part_that_was_not_requested_may_be_empty() -> None:
    alone = Groups(np.arange(2), np.ones(2, dtype=np.int64))
    check_sides([1, 1, 0], alone, SplitShares(0.2, 0.0), "notes")
