"""Claim: each epoch has every row once, in an order that depends on nothing else, and large text is read by windows."""

from collections.abc import Iterable, Sequence
from itertools import pairwise, takewhile

import numpy as np
import pytest

from clozeline.language.order import Block, Epoch, Turn, cursor, shuffled_plan, sorted_plan
from clozeline.system.errors import DataError
from tests.language.test_shards import many_rows


def in_order(plan: Epoch) -> np.ndarray:
    return np.concatenate([plan.rows_of(batch) for batch in range(plan.num_batches)])


def test_an_epoch_has_every_row_once_in_batches_that_fit_and_are_almost_free_of_padding() -> None:
    rows = many_rows()
    plan = shuffled_plan(rows.length_R, 2048, seed=1, epoch=0)
    assert sorted(in_order(plan)) == list(range(len(rows)))
    lengths = [rows.length_R[plan.rows_of(batch)] + 2 for batch in range(plan.num_batches)]
    padded = [len(length_B) * length_B.max() for length_B in lengths]
    assert max(padded) <= 2048
    assert sum(length_B.sum() for length_B in lengths) > 0.95 * sum(padded)
    with pytest.raises(DataError, match="no token"):
        next(cursor(np.zeros(0, np.int64), 2048, seed=1, epoch=0, batch=0))


def test_batches_for_evaluation_are_filled_shortest_first() -> None:
    full_to_the_last_token = ([62] * 9, 4 * 64, [[0, 1, 2, 3], [4, 5, 6, 7], [8]])
    with_a_row_longer_than_the_budget = ([5, 100, 6], 20, [[0, 2], [1]])
    for lengths, batch_tokens, batches in (full_to_the_last_token, with_a_row_longer_than_the_budget):
        plan = sorted_plan(np.array(lengths), batch_tokens)
        assert [plan.rows_of(batch).tolist() for batch in range(plan.num_batches)] == batches


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


def blocks_with(rows: Iterable[int], blocks: Sequence[Block]) -> set[int]:
    """Return the numbers of the blocks that hold these rows."""
    return set(np.searchsorted([block.rows.stop for block in blocks], list(rows), side="right").tolist())


def blocks_of(length_R: np.ndarray, num_blocks: int = 20) -> list[Block]:
    bounds = np.linspace(0, len(length_R), num_blocks + 1).astype(int).tolist()
    return [Block(slice(start, stop), int(length_R[start:stop].sum())) for start, stop in pairwise(bounds)]


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
    turns = cursor(length_R, 512, seed=1, epoch=0, batch=batch, blocks=blocks)
    return list(takewhile(lambda turn: turn.epoch == 0, turns))


def test_an_epoch_of_several_windows_has_every_row_once_and_each_epoch_another_order(windows_of_five_blocks) -> None:
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
    """A training that starts late reads the same batches, and reads ahead only what they need."""
    length_R = many_rows().length_R
    ahead: list[int] = []
    whole = epoch_of(length_R, windows_of_five_blocks, batch=0)
    for turn in whole:
        ahead += turn.blocks_ahead
        held = ahead[-12:]  # two windows of five or six blocks
        assert blocks_with(turn.rows_B, windows_of_five_blocks) <= {*held}
    assert sorted(ahead) == list(range(20)), "each block is read once"
    start = len(whole) // 3
    late = epoch_of(length_R, windows_of_five_blocks, batch=start)
    assert [turn.rows_B.tolist() for turn in late] == [turn.rows_B.tolist() for turn in whole[start:]]
    needed = blocks_with((row for turn in late for row in turn.rows_B), windows_of_five_blocks)
    assert {block for turn in late for block in turn.blocks_ahead} == needed
