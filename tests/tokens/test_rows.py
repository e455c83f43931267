import numpy as np
import pytest

from clozeline.errors import DataError
from clozeline.tokens.rows import Boundary, Rows, cursor, gather, shuffled_plan, sorted_plan

BOUNDARY = Boundary(cls_id=2, sep_id=3, pad_id=0)


def offsets_of(*sizes: int) -> np.ndarray:
    return np.cumsum([0, *sizes]).astype(np.uint64)


class CountingTokens:
    """Token i of the split is the number i, so that a test sees which tokens were read."""

    def __init__(self, offsets: np.ndarray) -> None:
        self.offsets = offsets

    def take(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        spans = [np.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)]
        return np.concatenate(spans)


def many_rows() -> Rows:
    sizes = np.random.default_rng(0).geometric(1 / 130, size=5000)
    return Rows.cut(offsets_of(*sizes), max_length=64)


def test_a_document_is_cut_into_rows_of_nearly_equal_length() -> None:
    rows = Rows.cut(offsets_of(10, 0, 63, 62), max_length=64)
    assert rows.document_R.tolist() == [0, 2, 2, 3]
    assert rows.start_R.tolist() == [0, 0, 32, 0]
    assert rows.length_R.tolist() == [10, 32, 31, 62]


@pytest.mark.parametrize("size", [1, 61, 62, 63, 124, 125, 1000])
def test_no_token_of_a_document_is_dropped_or_repeated(size: int) -> None:
    rows = Rows.cut(offsets_of(size), max_length=64)
    covered = [
        place
        for start, length in zip(rows.start_R, rows.length_R, strict=True)
        for place in range(start, start + length)
    ]
    assert covered == list(range(size))
    assert rows.length_R.max() <= 62


def test_an_epoch_has_every_row_exactly_once() -> None:
    rows = many_rows()
    plan = shuffled_plan(rows.length_R, 2048, seed=1, epoch=0)
    every = np.concatenate([plan.rows_of(batch) for batch in range(plan.num_batches)])
    assert sorted(every) == list(range(len(rows)))


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
    assert (first.order_R == again.order_R).all()
    assert not (first.order_R == second.order_R).all()


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


def test_a_batch_frames_each_row_and_records_the_origin_of_each_token() -> None:
    offsets = offsets_of(100, 3, 5)
    rows = Rows.cut(offsets, max_length=64)
    tokens = gather(CountingTokens(offsets), rows, np.array([2, 3]))
    assert tokens.padded(tokens.input_ids_N, BOUNDARY).tolist() == [
        [2, 100, 101, 102, 3, 0, 0],
        [2, 103, 104, 105, 106, 107, 3],
    ]
    assert tokens.document_N.tolist() == [1, 1, 1, 2, 2, 2, 2, 2]
    assert tokens.position_N.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]


def test_positions_count_from_the_start_of_the_document_not_of_the_row() -> None:
    offsets = offsets_of(100)
    rows = Rows.cut(offsets, max_length=64)
    tokens = gather(CountingTokens(offsets), rows, np.array([1]))
    assert tokens.position_N.tolist() == list(range(50, 100))


@pytest.mark.parametrize("rows_at_a_time", [100, 1 << 15])
def test_the_order_does_not_depend_on_the_sort_chunk_size(monkeypatch: pytest.MonkeyPatch, rows_at_a_time: int) -> None:
    length_R = many_rows().length_R
    monkeypatch.setattr("clozeline.tokens.rows._ROWS_AT_A_TIME", rows_at_a_time)
    random = np.random.Generator(np.random.Philox(key=[1, 0]))
    order_R = random.permutation(len(length_R))
    pool_R = np.cumsum(length_R[order_R] + 2) // (64 * 512)
    order_R = order_R[np.lexsort((length_R[order_R], pool_R))]
    plan = shuffled_plan(length_R, 512, seed=1, epoch=0)
    assert (plan.order_R == order_R).all()
    assert (plan.batches == random.permutation(plan.num_batches)).all()


def test_rows_do_not_depend_on_how_many_documents_are_cut_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = many_rows()
    monkeypatch.setattr("clozeline.tokens.rows._DOCUMENTS_AT_A_TIME", 7)
    parts = many_rows()
    assert (whole.document_R == parts.document_R).all()
    assert (whole.start_R == parts.start_R).all()
    assert (whole.length_R == parts.length_R).all()
