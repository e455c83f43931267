"""Batches hold every text once and stay within the budget, whatever the order of the texts."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.inference.open_model import TextBatch, batches, check_top_k, likeliest
from clozeline.inference.tokenization import TokenizedText
from clozeline.system.errors import DataError

PAD = 0


def batched(lengths: list[int], batch_tokens: int = 64) -> tuple[list[TokenizedText], list[TextBatch]]:
    """Return texts of these lengths, each with ids of its own, and their batches."""
    texts = [TokenizedText(np.arange(length) + 100 * (n + 1), ()) for n, length in enumerate(lengths)]
    return texts, list(batches(texts, pad_id=PAD, batch_tokens=batch_tokens))


def rows_of(batch: TextBatch) -> list[list[int]]:
    both = zip(batch.input_ids_BL, batch.attention_mask_BL, strict=True)
    return [ids_L[mask_L == 1].tolist() for ids_L, mask_L in both]


@given(st.lists(st.integers(1, 40), max_size=30), st.sampled_from([24, 64]))
def test_every_text_is_in_one_batch_with_its_own_tokens_and_padding_at_the_end(
    lengths: list[int], batch_tokens: int
) -> None:
    texts, found = batched(lengths, batch_tokens)
    rows = {place: row for batch in found for place, row in zip(batch.positions, rows_of(batch), strict=True)}
    assert rows == {number: text.ids_L.tolist() for number, text in enumerate(texts)}
    for batch in found:
        assert batch.input_ids_BL.size <= batch_tokens or len(batch.positions) == 1, "only a long text exceeds it"
        assert (np.diff(batch.attention_mask_BL, axis=1) <= 0).all()
        assert ((batch.input_ids_BL == PAD) == (batch.attention_mask_BL == 0)).all()
    shuffled = random.Random(0).sample(texts, len(texts))
    again = batches(shuffled, pad_id=PAD, batch_tokens=batch_tokens)
    assert [rows_of(batch) for batch in again] == [rows_of(batch) for batch in found]


EVENS, ODDS = range(0, 100, 2), range(1, 200, 2)


@pytest.mark.parametrize(
    ("logits", "top_k", "expected"),
    [
        ([0, 0, 0, 0], 1, [(0, 0.25)]),
        ([1e4, -1e4, 1e4], 3, [(0, 0.5), (2, 0.5), (1, 0.0)]),
        ([0, np.log(3)], 10, [(1, pytest.approx(0.75)), (0, pytest.approx(0.25))]),
        ([1, 1e4] * 100, 150, [*((place, 0.01) for place in ODDS), *((place, 0.0) for place in EVENS)]),
    ],
)
def test_the_likeliest_come_first_with_their_share_of_all(
    logits: list[float], top_k: int, expected: list[tuple[int, float]]
) -> None:
    assert likeliest(np.array(logits, dtype=np.float32), top_k) == expected


@pytest.mark.parametrize(("top_k", "step"), [(1, 0.5), (40, 1e-6), (40, 0.5)])
def test_the_likeliest_tokens_equal_those_of_a_full_sort(top_k: int, step: float) -> None:
    """Rounding to steps makes many values equal."""
    drawn = np.random.default_rng(top_k).normal(size=30_522)
    values = (np.round(drawn / step) * step).astype(np.float32)
    values[-top_k:] += 3  # the best are next to each other, at the end
    expected = np.argsort(-values, kind="stable")[:top_k]
    assert [place for place, _ in likeliest(values, top_k)] == expected.tolist()
    with pytest.raises(DataError, match="top_k"):
        check_top_k(0)
