import numpy as np
import pytest

from clozeline.language.shards import Boundary, Rows, gather

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


def test_rows_do_not_depend_on_how_many_documents_are_cut_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = many_rows()
    monkeypatch.setattr("clozeline.language.shards._DOCUMENTS_AT_A_TIME", 7)
    parts = many_rows()
    assert (whole.document_R == parts.document_R).all()
    assert (whole.start_R == parts.start_R).all()
    assert (whole.length_R == parts.length_R).all()
