"""Claim: each epoch has every row once, in an order that depends on nothing else, and large text is read by windows."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from clozeline.language.order import Block, Epoch, Turn, cursor, shuffled_plan, sorted_plan
from clozeline.system.errors import DataError
from tests.language.test_shards import many_rows


def in_order(plan: Epoch) -> np.ndarray:
    return np.concatenate([plan.rows_of(batch) for batch in range(plan.num_batches)])


def test_an_epoch_has_every_row_exactly_once() -> None:
    rows = many_rows()
    plan = shuffled_plan(rows.length_R, 2048, seed=1, epoch=0)
    assert sorted(in_order(plan)) == list(range(len(rows)))


def test_a_batch_fits_its_budget_and_is_almost_free_of_padding() -> None:
    rows = many_rows()
    plan = shuffled_plan(rows.length_R, 2048, seed=1, epoch=0)
    lengths = [rows.length_R[plan.rows_of(batch)] + 2 for batch in range(plan.num_batches)]
    padded = [len(length_B) * length_B.max() for length_B in lengths]
    assert max(padded) <= 2048
    waste = 1 - sum(length_B.sum() for length_B in lengths) / sum(padded)
    assert waste < 0.05


def test_full_rows_fill_the_budget_to_the_last_token() -> None:
    plan = sorted_plan(np.full(9, 62), batch_tokens=4 * 64)
    assert [len(plan.rows_of(batch)) for batch in range(plan.num_batches)] == [4, 4, 1]


def test_a_row_longer_than_the_budget_forms_its_own_batch() -> None:
    plan = sorted_plan(np.array([5, 100, 6]), batch_tokens=20)
    assert [plan.rows_of(batch).tolist() for batch in range(plan.num_batches)] == [[0, 2], [1]]


def test_epochs_differ_and_the_same_epoch_is_the_same() -> None:
    rows = many_rows()
    first, again, second = (shuffled_plan(rows.length_R, 2048, seed=1, epoch=epoch) for epoch in (0, 0, 1))
    assert (in_order(first) == in_order(again)).all()
    assert not (in_order(first) == in_order(second)).all()


def test_a_split_without_rows_is_refused() -> None:
    with pytest.raises(DataError, match="no token"):
        next(cursor(np.zeros(0, np.int64), 2048, seed=1, epoch=0, batch=0))


def test_batches_can_start_anywhere() -> None:
    length_R = many_rows().length_R
    num_batches = shuffled_plan(length_R, 2048, seed=1, epoch=0).num_batches
    endless = cursor(length_R, 2048, seed=1, epoch=0, batch=0)
    whole = [next(endless) for _ in range(num_batches + 3)]
    resumed = cursor(length_R, 2048, seed=1, epoch=0, batch=num_batches - 2)
    for expected in whole[-5:]:
        given = next(resumed)
        assert (given.epoch, given.batch) == (expected.epoch, expected.batch)
        assert (given.rows_B == expected.rows_B).all()
    assert (whole[-1].epoch, whole[-1].batch) == (1, 2)


@pytest.mark.parametrize("rows_at_a_time", [100, 1 << 15])
def test_the_order_does_not_depend_on_the_sort_chunk_size(monkeypatch: pytest.MonkeyPatch, rows_at_a_time: int) -> None:
    length_R = many_rows().length_R
    monkeypatch.setattr("clozeline.language.order._ROWS_AT_A_TIME", rows_at_a_time)
    random = np.random.Generator(np.random.Philox(key=[1, 0]))
    order_R = random.permutation(len(length_R))
    pool_R = np.cumsum(length_R[order_R] + 2) // (64 * 512)
    order_R = order_R[np.lexsort((length_R[order_R], pool_R))]
    (plan,) = shuffled_plan(length_R, 512, seed=1, epoch=0).windows
    assert (plan.order_R == order_R).all()
    assert (plan.batches == random.permutation(plan.num_batches)).all()


def blocks_of(length_R: np.ndarray, num_blocks: int = 20) -> list[Block]:
    bounds = np.linspace(0, len(length_R), num_blocks + 1).astype(int).tolist()
    return [Block(slice(start, stop), int(length_R[start:stop].sum())) for start, stop in pairwise(bounds)]


def block_of(row: int, blocks: Sequence[Block]) -> int:
    return next(number for number, block in enumerate(blocks) if row in range(block.rows.start, block.rows.stop))


@pytest.fixture
def windows_of_five_blocks(monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    blocks = blocks_of(many_rows().length_R)
    monkeypatch.setattr("clozeline.language.order.WINDOW_TOKENS", sum(block.num_tokens for block in blocks) // 4)
    return blocks


def test_text_of_one_window_has_one_order_whatever_its_shards() -> None:
    length_R = many_rows().length_R
    whole = shuffled_plan(length_R, 512, seed=1, epoch=0)
    in_shards = shuffled_plan(length_R, 512, seed=1, epoch=0, blocks=blocks_of(length_R))
    assert (in_order(in_shards) == in_order(whole)).all()
    assert not any(turn.blocks_ahead for turn in epoch_of(length_R, blocks_of(length_R), batch=0))


def epoch_of(length_R: np.ndarray, blocks: Sequence[Block], batch: int) -> list[Turn]:
    turns = []
    for turn in cursor(length_R, 512, seed=1, epoch=0, batch=batch, blocks=blocks):
        if turn.epoch == 1:
            return turns
        turns.append(turn)
    raise AssertionError


def test_an_epoch_of_several_windows_has_every_row_once_and_each_epoch_another_order(
    windows_of_five_blocks: list[Block],
) -> None:
    length_R = many_rows().length_R
    first, again, second = (
        shuffled_plan(length_R, 512, seed=1, epoch=epoch, blocks=windows_of_five_blocks) for epoch in (0, 0, 1)
    )
    assert sorted(in_order(first)) == sorted(in_order(second)) == list(range(len(length_R)))
    assert (in_order(first) == in_order(again)).all()
    assert first.blocks != second.blocks
    assert sorted(number for window in first.blocks for number in window) == list(range(20))


def test_rows_are_read_after_their_block_was_read_ahead_and_at_most_two_windows_are_held(
    windows_of_five_blocks: list[Block],
) -> None:
    length_R = many_rows().length_R
    ahead: list[int] = []
    for turn in epoch_of(length_R, windows_of_five_blocks, batch=0):
        ahead += turn.blocks_ahead
        held = ahead[-12:]  # two windows of five or six blocks
        assert {block_of(row, windows_of_five_blocks) for row in turn.rows_B} <= {*held}
    assert sorted(ahead) == list(range(20)), "each block is read once"


def test_a_training_that_starts_late_reads_the_same_batches_and_reads_ahead_what_they_need(
    windows_of_five_blocks: list[Block],
) -> None:
    length_R = many_rows().length_R
    whole = epoch_of(length_R, windows_of_five_blocks, batch=0)
    start = len(whole) // 3
    late = epoch_of(length_R, windows_of_five_blocks, batch=start)
    assert [turn.rows_B.tolist() for turn in late] == [turn.rows_B.tolist() for turn in whole[start:]]
    needed = {block_of(row, windows_of_five_blocks) for turn in late for row in turn.rows_B}
    assert {*late[0].blocks_ahead} <= needed
    assert {block for turn in late for block in turn.blocks_ahead} == needed
